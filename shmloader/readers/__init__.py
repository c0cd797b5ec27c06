"""Other processes that read a served loader: NOTE [ Readers on leases ] in cython_ext/batch/served_side.pyx."""
