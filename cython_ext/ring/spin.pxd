"""spin.h for Cython: how long a side spins before it sleeps."""

cdef extern from "ring/spin.h" nogil:
    ctypedef struct ring_spin:
        int yields
    int spin_budget(ring_spin *spin)
    bint spin_once(const ring_spin *spin)
    void spin_learn(ring_spin *spin, int spins, bint met)
