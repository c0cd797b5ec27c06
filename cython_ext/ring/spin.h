/* A side that has to wait spins before it sleeps, because sleeping and waking cost both sides some microseconds, and a
 * small batch is made in less.
 *
 * If each process has a core, the side pauses on its core, for up to twice as long as recent waits took.  Otherwise a
 * pause would keep the core from the process that it waits for.  So it yields the core, a few times.  That helps if the
 * other side needs microseconds (scalars: 108,000 -> 180,000 batches/s, 2 workers on 2 cores), and only then: a
 * yielding process runs again only when the scheduler picks it, which takes milliseconds between busy processes.  So a
 * yield that took long ends the spinning, and if yields do not help, only one wait in SPIN_PROBE tries them. */
#ifndef SHMLOADER_SPIN_H
#define SHMLOADER_SPIN_H
#include "atomics.h"
#include "clock.h"
#include <sched.h>

enum {
    SPIN_FEWEST = 20,     /* pauses, about 1 us */
    SPIN_MOST = 2000,     /* pauses, about 60 us: what two futex calls and a switch cost, several times over */
    SPIN_YIELDS = 32,   /* about 15 us, if no other process wants the core */
    SPIN_LONG = 100000, /* nanoseconds that a yield may take */
    SPIN_PROBE = 64,
};

typedef struct {
    int yields; /* whether it yields */
    int recent; /* pauses that were needed of late; or how well yields went of late, 0 to 16 */
    int waits;  /* since yields were tried */
} ring_spin;

static inline int spin_budget(ring_spin *s)
{
    if (!s->yields) {
        int budget = 2 * s->recent;
        return budget < SPIN_FEWEST ? SPIN_FEWEST : budget > SPIN_MOST ? SPIN_MOST : budget;
    }
    if (s->recent <= 0 && ++s->waits % SPIN_PROBE) return 0;
    return SPIN_YIELDS;
}

static inline int spin_once(const ring_spin *s) /* returns whether to continue */
{
    if (!s->yields) {
        ring_relax();
        return 1;
    }
    uint64_t before = clock_now();
    sched_yield();
    return clock_now() - before < SPIN_LONG;
}

/* `met`: the event came before the side slept. */
static inline void spin_learn(ring_spin *s, int spins, int met)
{
    if (!s->yields) s->recent += ((met ? spins : 0) - s->recent) / 8; /* the mean of about eight */
    else if (met) s->recent = s->recent < 12 ? s->recent + 4 : 16;
    else s->recent = s->recent > 2 ? s->recent - 2 : 0;
}
#endif
