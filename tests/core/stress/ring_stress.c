/* The ring's verbs under ThreadSanitizer: threads for processes, the walk of worker.pyx, one plain word a payload.
 *
 * One plain word, because TSan remembers four accesses to eight bytes and misses races on longer payloads.
 * Worker 0 dies in the middle of a fill, time and again.  Its successors run from the start, and a relaxed store gives
 * each its turn, because pthread_create() would itself order what ring_revoke has to order.
 * With -DSTEAL every sequence is for whoever comes first, and with -DWEAKEN one verb has lost its order (weaken.h).
 * Exit status 0 and no report: every access to a payload and to a task is ordered by atomics.h. */
#define _GNU_SOURCE
#include "weaken.h"
#include "atomics.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { ENTRIES = 4, WORKERS = 2, SPARE = 1, PAYLOADS = ENTRIES + SPARE, LIVES = 8 };
static uint64_t sequences = 3000;
#ifdef STEAL
#define OWNER(seq) RING_ANY
#else
#define OWNER(seq) ((uint32_t)((seq) % WORKERS))
#endif

static ring_header header;
static ring_worker worker[WORKERS];
static ring_entry entry[ENTRIES];
static uint64_t task[ENTRIES], payload[PAYLOADS];
static pthread_t threads[LIVES + WORKERS - 1]; /* the first LIVES are worker 0, one after another */
static _Atomic int life, deaths;               /* whose turn it is, and how many have died */
static _Atomic uint64_t first;                 /* where the successor starts to walk */

static int look(uint64_t *cursor, uint32_t me, uint32_t *revocations) /* WorkerSide.look */
{
    uint32_t now = ring_revocations(&header);
    if (now != *revocations) *cursor -= *cursor < ENTRIES ? *cursor : ENTRIES;
    *revocations = now;
    for (;;) {
        uint64_t word = ring_load(&entry[*cursor % ENTRIES]);
        if (ring_seq(word) < *cursor || ring_state(word) == RING_VOID) return 0;
        if (ring_seq(word) == *cursor && ring_state(word) == RING_OPEN &&
            (ring_owner(word) == me || ring_owner(word) == RING_ANY)) return 1;
        ++*cursor;
    }
}

static void *work(void *number) /* WorkerSide.claim, a fill, WorkerSide.publish */
{
    int which = (int)(uintptr_t)number, fills = 0;
    uint32_t me = which < LIVES ? 0 : (uint32_t)(which - LIVES + 1);
    while (!me && atomic_load_explicit(&life, memory_order_relaxed) != which)
        if (ring_raised(&header.stop)) return NULL;
    uint64_t cursor = me ? 0 : atomic_load_explicit(&first, memory_order_relaxed);
    uint32_t revocations = 0;
    for (;;) {
        if (ring_raised(&header.stop)) return NULL;
        if (look(&cursor, me, &revocations)) {
            ring_entry *mine = &entry[cursor % ENTRIES];
            if (!ring_claim(mine, cursor, OWNER(cursor), me)) continue;
            payload[mine->ask.payload] = task[cursor % ENTRIES];
            if (which < LIVES - 1 && ++fills == 100) { /* dies, holding what it has written */
                atomic_store_explicit(&deaths, which + 1, memory_order_relaxed);
                ring_toll(&header.ready_bell); /* TrainerSide.alarm, by the watching thread */
                return NULL;
            }
            if (!ring_publish(mine, cursor, me)) abort();
            cursor++;
            ring_ring(&header.ready_bell);
            continue;
        }
        uint32_t seen = ring_announce(&worker[me].bell);
        if (!look(&cursor, me, &revocations) && !ring_raised(&header.stop)) ring_sleep(&worker[me].bell, seen, NULL);
        ring_rise(&worker[me].bell);
    }
}

static void open_next(uint64_t seq, uint32_t free) /* TrainerSide.open */
{
    task[seq % ENTRIES] = seq * 7 + 1;
    entry[seq % ENTRIES].ask.payload = free;
    ring_open(&entry[seq % ENTRIES], seq, OWNER(seq));
    if (OWNER(seq) != RING_ANY) ring_ring(&worker[OWNER(seq)].bell);
    else for (int k = 0; k < WORKERS && !ring_ring(&worker[(seq + k) % WORKERS].bell); k++) {}
}

static int ready(uint64_t seq)
{
    uint64_t word = ring_load(&entry[seq % ENTRIES]);
    return ring_seq(word) == seq && ring_state(word) == RING_READY;
}

static int alarmed(void)
{ return atomic_load_explicit(&deaths, memory_order_relaxed) > atomic_load_explicit(&life, memory_order_relaxed); }

static void recover(uint64_t next_take) /* reap, TrainerSide.revoke, start another */
{
    int now = atomic_load_explicit(&life, memory_order_relaxed);
    pthread_join(threads[now], NULL);
    for (uint64_t seq = next_take; seq < next_take + ENTRIES; seq++)
        ring_revoke(&entry[seq % ENTRIES], seq, 0, OWNER(seq));
#ifdef STEAL /* the others have passed over it; and without this, ring_revoke alone must order what the successor sees */
    ring_note_revoked(&header);
    for (int k = 0; k < WORKERS; k++) ring_toll(&worker[k].bell);
#endif
    atomic_store_explicit(&first, next_take, memory_order_relaxed);
    atomic_store_explicit(&life, now + 1, memory_order_relaxed);
}

int main(int count, char **arguments)
{
    if (count > 1) sequences = strtoull(arguments[1], NULL, 10);
    uint32_t lent = ENTRIES; /* the payload lent last is free when the next batch is taken */
    for (uintptr_t k = 0; k < LIVES + WORKERS - 1; k++) pthread_create(&threads[k], NULL, work, (void *)k);
    for (uint64_t seq = 0; seq < ENTRIES; seq++) open_next(seq, (uint32_t)seq);
    for (uint64_t seq = 0; seq < sequences; seq++) {
        while (!ready(seq)) { /* TrainerSide.wait */
            if (alarmed()) recover(seq);
            uint32_t seen = ring_announce(&header.ready_bell);
            if (!ready(seq) && !alarmed()) ring_sleep(&header.ready_bell, seen, NULL);
        }
        uint32_t taken = entry[seq % ENTRIES].ask.payload;
        if (payload[taken] != seq * 7 + 1) { fprintf(stderr, "sequence %lu is torn\n", (unsigned long)seq); return 1; }
        open_next(seq + ENTRIES, lent);
        lent = taken;
    }
    ring_raise(&header.stop);
    for (int k = 0; k < WORKERS; k++) ring_toll(&worker[k].bell);
    int left = atomic_load_explicit(&life, memory_order_relaxed);
    for (int k = left; k < LIVES + WORKERS - 1; k++) pthread_join(threads[k], NULL);
    return 0;
}
