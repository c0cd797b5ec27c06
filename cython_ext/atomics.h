/* The ring's shared words, and every atomic operation on them.
 *
 * Every atomic operation on a shared word is here, so all memory orders can be read in one place.
 * Linux, 64-bit, little-endian.  The words are lock-free, therefore address-free: each process maps the ring
 * wherever it likes (C11, section 7.17.5).  NOTE [ Slot ring ] in ring.pxd has the protocol that uses these verbs.
 */
#pragma once
#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "shared words must be lock-free");
_Static_assert(sizeof(void *) == 8, "the ring needs a 64-bit address space");

/* The places at which tests/core/test_kill_at_each_step.py kills a worker; nothing in any other build. */
#ifndef RING_STEP
#define RING_STEP(step)
#endif

#define RING_LINE 128 /* two 64-byte lines: x86 prefetches pairs, and some arm64 lines are 128 bytes */
#define RING_MAGIC 0x676e69726d6873ULL /* "shmring" */
#define RING_VERSION 14u

/* A sequence's whole protocol state is one word:  seq:40 | owner:16 | state:8.
 * Claiming and recording who claimed are the same CAS, so a SIGKILL cannot fall between them.
 * 40 bits last 12 days at a million batches a second. */
enum { RING_VOID, RING_OPEN, RING_CLAIMED, RING_READY };

/* Nobody called set_epoch() of the dataset. */
#define RING_NO_EPOCH INT64_MIN

/* In OPEN, instead of a worker: any worker may claim it. */
#define RING_ANY 0xffffu

/* What a worker is asked to do, written by the trainer before ring_open and read by the worker after ring_claim. */
typedef struct {
    uint32_t task_size; /* in the entry's area: indices, or bytes where the task is pickled */
    uint32_t task_kind;
    uint32_t payload;   /* the payload slot this sequence is to fill */
    uint32_t batch;     /* the number of its batch in the epoch, for onlookers; no side reads it */
    uint32_t row, rows; /* a chunk: its first row in the batch, or LISTED, of how many; rows 0: a whole batch */
    uint64_t seed;      /* of the batch, where samples are seeded one by one */
    uint32_t epoch;     /* which of the ring's epochs the batch is of: a worker that meets a new one begins it */
    uint32_t cell;      /* the cell for the stream's state after the batch; NO_CELL: none */
    int64_t dataset_epoch; /* the dataset's from set_epoch() when the index was drawn, or RING_NO_EPOCH */
} ring_ask;

/* The worker's report, written before ring_publish and read by the trainer once it has loaded READY. */
typedef struct {
    uint64_t used;                     /* bytes written, from the payload's start */
    uint32_t meta_at, meta_size;       /* in the entry's area: the description of its leaves */
    uint32_t plan_at, plan_size;       /* in the entry's area: the plan */
    uint64_t objects_at, objects_size; /* the pickled leaves: in the payload (a table), a chunk's in the area */
    uint32_t outcome;                  /* FILLED, KEPT, SKIPPED or SKIPPED_KEPT, see ring.pxd */
    uint32_t state_size;               /* bytes in the cell, or NO_ROOM; without a cell: bytes of its report */
} ring_answer;

/* NOTE [ Figures ]
 *
 * Figures are the source of the statistics, of `shmloader top` and of traces.  Times are CLOCK_MONOTONIC in
 * nanoseconds, which all processes of a machine share.  Counts and durations (_ns) only grow, except `lent`.
 *
 *     1. Each figure has one writer, and no process takes a figure as a sign that it may read other memory.  So
 *        ring_note and ring_add are relaxed, and no figure has a part in the protocol: the model in tests/core/model
 *        knows none of them.
 *     2. The time stamps of a sequence lie in the cache lines of its entry, which move between the processes anyway.
 *        The worker writes the stamps before ring_publish.  So once the trainer has loaded READY, it reads the stamps
 *        of the sequence that it takes.
 *     3. The figures of each worker, and of the trainer, lie in a cache line of their own.  So they cost other cores
 *        nothing until one of them reads the line.
 *     4. An onlooker maps the segment read-only.  The kernel copies the words for it, because a read of its own would
 *        end in SIGBUS if the memory was truncated.  The copy is not a snapshot of one moment.  A time in it may be a
 *        little later than the onlooker's own clock reading, and a sequence may have changed its state while the copy
 *        was made.
 *     5. Workers run other people's code, which may overwrite figures too.  So before anything is computed from a
 *        figure, it is clamped to the range of possible values. */

/* A ring entry: the word of the sequence that lives in it, and the plain words that travel with it. */
typedef struct {
    _Alignas(RING_LINE) _Atomic uint64_t word;
    /* In OPEN, the three times are still those of an earlier sequence; published_at also in CLAIMED. */
    _Atomic uint64_t claimed_at; /* when a worker claimed it */
    ring_ask ask;
    _Atomic uint64_t fetched_at;   /* when its samples were there, and were about to be collated; 0: not yet */
    _Atomic uint64_t published_at; /* when it was about to be published */
    ring_answer answer;
} ring_entry;

/* What a worker does now: `doing` is the time since when, with one of these in its lowest bits. */
enum { RING_STARTS, RING_WAITS, RING_FETCHES, RING_COLLATES, RING_DOINGS = 4 };

typedef struct {
    _Alignas(RING_LINE) _Atomic uint32_t bell; /* count:31 | sleeper:1, rung by open, stop and dismiss */
    _Atomic uint32_t dismissed;                /* leave when nothing more is open for you */
    /* The worker's figures.  The successor of a dead worker adds to its figures. */
    _Alignas(RING_LINE) _Atomic uint64_t doing;
    _Atomic uint64_t pid;       /* of the process that is this worker now; 0: none was yet */
    _Atomic uint64_t published; /* sequences */
    _Atomic uint64_t filled;    /* of these, those with a batch, or an error in its place; not a stream's end */
    _Atomic uint64_t fetched_ns, collated_ns;
    _Atomic uint64_t idle_ns;   /* between what it published and what it claimed next, of one epoch */
    _Atomic uint64_t behind_ns; /* of idle_ns, as far as it slept: while the trainer waited for another's batch */
    _Atomic uint64_t cpu_ns, delayed_ns; /* while it made batches: it ran on a core, it was ready to run and had none */
    _Atomic uint64_t probed_ns; /* the length of the time in which the last two were measured */
} ring_worker;

typedef struct {
    _Alignas(RING_LINE) uint64_t magic; /* written once, before any worker is started, but for epoch_seed */
    uint32_t version, workers, entries, payloads, in_order, batches;
    uint64_t epoch_seed; /* changes while no task is in flight; seen with the first task of the epoch */
    uint64_t area_at, area_stride, slot_at, slot_stride; /* of entries' areas and of payloads, in the segment */
    uint64_t started_at, trainer;                        /* the ring; the trainer's pid */
    _Alignas(RING_LINE) _Atomic uint32_t ready_bell; /* count:31 | sleeper:1, rung by publish and by a death */
    _Alignas(RING_LINE) _Atomic uint32_t stop;
    _Atomic uint32_t revocations; /* how often claims were revoked; then workers walk again from earlier on */
    _Atomic uint32_t folds; /* how often free payloads gave pages back; seen with a task that names one of these */
    /* The trainer's figures. */
    _Alignas(RING_LINE) _Atomic uint64_t asked_at; /* when next() was called; 0: it is not in next() */
    _Atomic uint64_t waited_ns, stepped_ns; /* in next(); between one next() and another */
    _Atomic uint64_t epoch;                 /* its number in this ring */
    _Atomic uint64_t opened, taken;         /* batches, of all epochs */
    _Atomic uint64_t samples, bytes;        /* that were taken */
    _Atomic uint64_t asked, empty, ready;   /* calls of next(); those that found none ready; ready batches, over all */
    _Atomic uint64_t lent, copied, deaths;  /* batches lent now; batches copied out; workers that died */
    _Atomic uint64_t user_waited_ns, user_stepped_ns; /* the user's own, if a prefetch thread calls next() (device=) */
    _Alignas(RING_LINE) char label[RING_LINE]; /* the dataset's name, ending with a 0; written once */
} ring_header;

/* A payload slot.  `overflowed` is plain: only the process that holds the sequence that names the payload uses it, and
 * the release and acquire of the sequence's word order its accesses. */
typedef struct {
    _Alignas(RING_LINE) _Atomic uint64_t committed; /* bytes that have pages; read by others only as an estimate */
    uint32_t overflowed; /* its pages are in the memfd, 1: for lack of room in /dev/shm, 2: since it outgrew its room */
} ring_payload;

/* The states of a worker's random generators after one sequence.  If the worker dies, its successor reads them.  The
 * worker writes the states first, and then `after`, which makes them valid.  Each worker has two of these: while it
 * writes one, the other one keeps the states after the last published sequence.  So one of them is always valid, even
 * if one worker after another dies before it publishes the next sequence. */
typedef struct {
    _Alignas(RING_LINE) _Atomic uint64_t after; /* the sequence after which the states were so, plus 1; 0: none */
    uint64_t size;                              /* bytes that follow */
} ring_memory;

_Static_assert(sizeof(ring_memory) == RING_LINE, "what is remembered begins on the next line");
_Static_assert(sizeof(ring_entry) == RING_LINE && sizeof(ring_worker) == 2 * RING_LINE, "one shared word a line");
_Static_assert(sizeof(ring_payload) == RING_LINE && sizeof(ring_header) == 5 * RING_LINE, "no line is shared");

static inline uint64_t ring_pack(uint64_t seq, uint32_t owner, uint32_t state)
{ return seq << 24 | (uint64_t)(owner & 0xffff) << 8 | (state & 0xff); }
static inline uint64_t ring_seq(uint64_t w)   { return w >> 24; }
static inline uint32_t ring_owner(uint64_t w) { return (uint32_t)(w >> 8) & 0xffff; }
static inline uint32_t ring_state(uint64_t w) { return (uint32_t)w & 0xff; }

/* acquire, pairs with ring_publish (trainer: the payload is whole) and with ring_open (worker: the task is whole, also
 * where it is read before ring_claim, by the worker that OPEN names). */
static inline uint64_t ring_load(const ring_entry *e)
{ return atomic_load_explicit((_Atomic uint64_t *)&e->word, memory_order_acquire); }

/* acquire, pairs with ring_open: the task is whole, and the trainer has stopped reading the payload.
 * (The ring_load that saw OPEN already synchronised; this keeps the claim correct without it.)
 * release, so that a process that sees the claim sees the ring_rise before it.
 * `who` is the owner that OPEN names: this worker, or RING_ANY.  Then it fails if another worker was quicker. */
static inline int ring_claim(ring_entry *e, uint64_t seq, uint32_t who, uint32_t me)
{
    uint64_t want = ring_pack(seq, who, RING_OPEN);
    return atomic_compare_exchange_strong_explicit(&e->word, &want, ring_pack(seq, me, RING_CLAIMED),
                                                   memory_order_acq_rel, memory_order_relaxed);
}

/* release, pairs with ring_load in the trainer: the payload precedes the word.  A CAS and not a store, so that it
 * fails where the claim has been taken away. */
static inline int ring_publish(ring_entry *e, uint64_t seq, uint32_t me)
{
    uint64_t want = ring_pack(seq, me, RING_CLAIMED);
    return atomic_compare_exchange_strong_explicit(&e->word, &want, ring_pack(seq, me, RING_READY),
                                                   memory_order_release, memory_order_relaxed);
}

/* acq_rel, by the trainer: opens a sequence again whose worker is dead and reaped, and so can write nothing more.
 * `who` is that worker, which has a successor, or RING_ANY.  Pairs with their ring_load and ring_claim. */
static inline int ring_revoke(ring_entry *e, uint64_t seq, uint32_t dead, uint32_t who)
{
    uint64_t want = ring_pack(seq, dead, RING_CLAIMED);
    return atomic_compare_exchange_strong_explicit(&e->word, &want, ring_pack(seq, who, RING_OPEN),
                                                   memory_order_acq_rel, memory_order_relaxed);
}

/* release / acquire, with one another: a worker that sees the new count also sees the words that were opened again. */
static inline void ring_note_revoked(ring_header *h)
{ atomic_fetch_add_explicit(&h->revocations, 1, memory_order_release); }
static inline uint32_t ring_revocations(const ring_header *h)
{ return atomic_load_explicit((_Atomic uint32_t *)&h->revocations, memory_order_acquire); }

/* release, pairs with ring_load and ring_claim in the worker: the task, and the trainer's reads of the payload the
 * task names, precede the word. */
static inline void ring_open(ring_entry *e, uint64_t seq, uint32_t owner)
{ atomic_store_explicit(&e->word, ring_pack(seq, owner, RING_OPEN), memory_order_release); }

/* release / acquire, with one another: a worker that sees the flag also sees all that was opened before. */
static inline void ring_raise(_Atomic uint32_t *flag) { atomic_store_explicit(flag, 1, memory_order_release); }
static inline int ring_raised(const _Atomic uint32_t *flag)
{ return (int)atomic_load_explicit((_Atomic uint32_t *)flag, memory_order_acquire); }

/* relaxed: only an amount, for reports and sums.  No memory is read because of its value. */
static inline void ring_note_committed(ring_payload *p, uint64_t bytes)
{ /* only upwards, because the workers of several chunks commit pages of one payload at the same time */
    uint64_t before = atomic_load_explicit(&p->committed, memory_order_relaxed);
    while (before < bytes && !atomic_compare_exchange_weak_explicit(&p->committed, &before, bytes,
                                                                    memory_order_relaxed, memory_order_relaxed)) {}
}
/* relaxed, by the trainer, of a payload that is free: ring_open is between this and whoever fills it next. */
static inline void ring_forget_committed(ring_payload *p, uint64_t left)
{ atomic_store_explicit(&p->committed, left, memory_order_relaxed); }
static inline uint64_t ring_committed(const ring_payload *p)
{ return atomic_load_explicit((_Atomic uint64_t *)&p->committed, memory_order_relaxed); }
/* relaxed: ring_open is between this and whoever fills that payload next.  Who sees it earlier only looks again. */
static inline void ring_note_folded(ring_header *h)
{ atomic_fetch_add_explicit(&h->folds, 1, memory_order_relaxed); }
static inline uint32_t ring_folds(const ring_header *h)
{ return atomic_load_explicit((_Atomic uint32_t *)&h->folds, memory_order_relaxed); }

/* relaxed: NOTE [ Figures ].  ring_add is no read-modify-write, because a figure has one writer. */
static inline void ring_note(_Atomic uint64_t *figure, uint64_t value)
{ atomic_store_explicit(figure, value, memory_order_relaxed); }
static inline uint64_t ring_noted(const _Atomic uint64_t *figure)
{ return atomic_load_explicit((_Atomic uint64_t *)figure, memory_order_relaxed); }
static inline void ring_add(_Atomic uint64_t *figure, uint64_t more)
{ ring_note(figure, ring_noted(figure) + more); }
static inline void ring_note_doing(ring_worker *w, uint32_t what, uint64_t since)
{ ring_note(&w->doing, since / RING_DOINGS * RING_DOINGS | what); }

/* release / acquire, with one another: the states precede the word.  Before states are overwritten, ring_forget clears
 * their word, and its fence keeps the writes of the new states from moving before that. */
static inline void ring_remember(ring_memory *m, uint64_t seq)
{ atomic_store_explicit(&m->after, seq + 1, memory_order_release); }
static inline void ring_forget(ring_memory *m)
{
    atomic_store_explicit(&m->after, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}
static inline uint64_t ring_remembered(const ring_memory *m)
{ return atomic_load_explicit((_Atomic uint64_t *)&m->after, memory_order_acquire); }

/* NOTE [ Cache table ]
 *
 * An open-addressed table of words says where each kept (decoded) picture lies.  All processes of a user map the table.
 * A word is 0, a claim or an entry (`:n` = n bits):
 *
 *     claim   state:2 = 1 | pid:22 | start:40, that process's start in clock ticks since boot
 *     entry   state:2 = 2 | tag:26, bits of the picture's key | place:36, of its bytes, in units of CACHE_UNIT
 *
 *     1. The probes for a picture begin at the slot that its key names, and go on while they find entries of other
 *        pictures.  They end at the picture's own entry, at 0 or at a claim.  If a process meets the claim of a living
 *        process, it does not use the cache this time, and does not try the next slot.  So a picture has one entry at
 *        most.  A process never steps over a claim to put an entry behind it.  A process that gives up its claim sets
 *        the word to 0 again.  Probes that end at this 0 miss no entry, because none was put behind the claim.
 *     2. No process waits.  The one that claims a slot decodes the picture, reserves bytes that no other process was
 *        given, writes them, and publishes the entry last.  So an entry's bytes are whole, even if a process is killed.
 *     3. An entry stays as it is.  Nothing is evicted: under random access each picture is asked for once an epoch, so
 *        what was kept first is worth as much as what would come in its place.
 *     4. A claim names a process by its pid and its start.  If the pid is given to another process later, that process
 *        has another start.  A process that meets the claim of one that has ended puts its own claim there, by
 *        compare-and-swap.  If two processes try that, one succeeds, and the other does without the cache this time.
 *     5. A living process may be taken for dead, because pids of another namespace mean nothing here.  Then its publish
 *        fails, because its claim is gone, and its bytes are lost.  Such a mistake costs one further decoding of a
 *        picture.
 *
 * The table is in memory without a file, so writing a word cannot fail because a disk is full.  The model in
 * tests/core/model/cache_model.py visits every interleaving.  It also has deliberately wrong variants, each of which
 * breaks one of these rules. */
enum { CACHE_EMPTY, CACHE_CLAIM, CACHE_ENTRY };
enum { CACHE_UNIT = 64, CACHE_PLACE_BITS = 36, CACHE_TAG_BITS = 26, CACHE_LINES = 64, CACHE_VERSION = 2 };
#define CACHE_MAGIC 0x6568636163776873ULL /* "shwcache" */

/* What one dataset's processes count, relaxed: NOTE [ Figures ], but for that these have several writers. */
typedef struct {
    _Alignas(RING_LINE) _Atomic uint64_t found;
    _Atomic uint64_t kept, missed;                            /* pictures; missed: decoded, and not kept */
    _Atomic uint64_t missed_bytes;                            /* that the samples of those would take */
    _Atomic uint64_t others;                                  /* pictures that the decoder does not take */
} cache_line;

typedef struct {
    _Alignas(RING_LINE) uint64_t magic; /* written once, before anybody else can find the memory */
    uint64_t version, slots, table_at, bytes_at;
    _Alignas(RING_LINE) _Atomic uint64_t used;   /* bytes that were given out */
    _Atomic uint64_t budget;                     /* how many may be */
    _Atomic uint64_t full;                       /* 1: the machine has no more memory, whatever the budget says */
    _Atomic uint64_t readers;                    /* datasets that were given a line, of CACHE_LINES by turns */
    cache_line lines[CACHE_LINES];
} cache_header;

_Static_assert(sizeof(cache_line) == RING_LINE, "a dataset's figures have a line of their own");

static inline uint64_t cache_claim_of(uint64_t pid, uint64_t start)
{ return (uint64_t)CACHE_CLAIM << 62 | (pid & 0x3fffff) << 40 | (start & 0xffffffffffULL); }
static inline uint64_t cache_entry_of(uint64_t tag, uint64_t place)
{ return (uint64_t)CACHE_ENTRY << 62 | (tag & 0x3ffffff) << CACHE_PLACE_BITS | place / CACHE_UNIT; }
static inline uint32_t cache_state(uint64_t w) { return (uint32_t)(w >> 62); }
static inline uint64_t cache_pid(uint64_t w)   { return w >> 40 & 0x3fffff; }
static inline uint64_t cache_start(uint64_t w) { return w & 0xffffffffffULL; }
static inline uint64_t cache_tag(uint64_t w)   { return w >> CACHE_PLACE_BITS & 0x3ffffff; }
static inline uint64_t cache_place(uint64_t w) { return (w & ((1ULL << CACHE_PLACE_BITS) - 1)) * CACHE_UNIT; }

/* acquire, pairs with cache_publish: the picture's bytes are whole. */
static inline uint64_t cache_look(const _Atomic uint64_t *word)
{ return atomic_load_explicit((_Atomic uint64_t *)word, memory_order_acquire); }

/* relaxed: a claim protects nothing but the claim.  `seen` is 0, or the claim of a process that has ended: no entry
 * names its bytes, so nothing that it wrote is read. */
static inline int cache_claim(_Atomic uint64_t *word, uint64_t seen, uint64_t mine)
{
    return atomic_compare_exchange_strong_explicit(word, &seen, mine, memory_order_relaxed, memory_order_relaxed);
}

/* relaxed: the new sum alone makes the bytes the caller's.  Returns where they begin.  A compare-and-swap and not an
 * add, so that a request that does not fit leaves the sum as it was, and returns UINT64_MAX. */
static inline uint64_t cache_reserve(cache_header *h, uint64_t bytes)
{
    uint64_t at = atomic_load_explicit(&h->used, memory_order_relaxed);
    do {
        uint64_t budget = atomic_load_explicit(&h->budget, memory_order_relaxed);
        if (bytes > budget || at > budget - bytes) return UINT64_MAX;
    } while (!atomic_compare_exchange_weak_explicit(&h->used, &at, at + bytes, memory_order_relaxed,
                                                    memory_order_relaxed));
    return at;
}

/* release, pairs with cache_look: the bytes precede the word, also those that the kernel copied in a write() of the same
 * thread.  A CAS and not a store, so that it fails where the claim was taken over. */
static inline int cache_publish(_Atomic uint64_t *word, uint64_t mine, uint64_t entry)
{
    return atomic_compare_exchange_strong_explicit(word, &mine, entry, memory_order_release, memory_order_relaxed);
}

/* relaxed: nothing was written that anybody could read.  A CAS, as in cache_publish. */
static inline int cache_release(_Atomic uint64_t *word, uint64_t mine)
{
    return atomic_compare_exchange_strong_explicit(word, &mine, 0, memory_order_relaxed, memory_order_relaxed);
}

/* relaxed, as all figures.  cache_raise sets a figure to `value` if that is larger, and returns whether it was. */
static inline uint64_t cache_count(_Atomic uint64_t *figure, uint64_t more)
{ return atomic_fetch_add_explicit(figure, more, memory_order_relaxed); }
static inline int cache_raise(_Atomic uint64_t *figure, uint64_t value)
{
    uint64_t before = atomic_load_explicit(figure, memory_order_relaxed);
    while (before < value)
        if (atomic_compare_exchange_weak_explicit(figure, &before, value, memory_order_relaxed, memory_order_relaxed))
            return 1;
    return 0;
}

/* Reads a plain word that a faulty process may overwrite.  volatile, so that the checked value is the value in use. */
static inline uint64_t ring_once(const uint64_t *word)    { return *(const volatile uint64_t *)word; }
static inline uint32_t ring_once_32(const uint32_t *word) { return *(const volatile uint32_t *)word; }

/* An eventcount.  Sleeper and ringer change one word, so its modification order decides every race and no store-load
 * (seq_cst) fence is needed.  If the sleeper was first, the ringer's add returns its bit, and the ringer wakes it.  If
 * the ringer was first, the sleeper's atomic OR reads from the add, and the look that follows sees what it did.
 * ring_ring: acq_rel, pairs with ring_announce.  Not _PRIVATE: other processes wait. */
static inline void ring_wake(_Atomic uint32_t *bell)
{
    atomic_fetch_and_explicit(bell, ~1u, memory_order_relaxed);
    RING_STEP(WOKE);
    syscall(SYS_futex, bell, FUTEX_WAKE, INT32_MAX, 0, 0, 0);
}
static inline int ring_ring(_Atomic uint32_t *bell) /* whether somebody was asleep, or about to be */
{
    int sleeper = atomic_fetch_add_explicit(bell, 2, memory_order_acq_rel) & 1;
    if (sleeper) ring_wake(bell);
    return sleeper;
}

/* Rings the bell to report a death.  It wakes the sleeper even if the sleeper bit is 0, because the victim may have
 * died after it cleared the bit and before its FUTEX_WAKE. */
static inline void ring_toll(_Atomic uint32_t *bell)
{
    atomic_fetch_add_explicit(bell, 2, memory_order_acq_rel);
    ring_wake(bell);
}

/* acq_rel, pairs with ring_ring.  Announce, then LOOK AGAIN, then sleep. */
static inline uint32_t ring_announce(_Atomic uint32_t *bell)
{ return atomic_fetch_or_explicit(bell, 1, memory_order_acq_rel) | 1; }

/* acq_rel.  The worker that announced itself calls this when it is awake, and before it claims anything: it clears its
 * sleeper bit.  Otherwise the next ring would believe that it woke this busy worker, and an idle one would sleep on. */
static inline void ring_rise(_Atomic uint32_t *bell)
{ atomic_fetch_and_explicit(bell, ~1u, memory_order_acq_rel); }

/* 0: woken, or the value had changed, or for no reason.  EINTR: run the signal handlers and retry.  ETIMEDOUT. */
static inline int ring_sleep(_Atomic uint32_t *bell, uint32_t seen, const struct timespec *monotonic_deadline)
{
    long r = syscall(SYS_futex, bell, FUTEX_WAIT_BITSET, seen, monotonic_deadline, 0, FUTEX_BITSET_MATCH_ANY);
    return r == 0 || errno == EAGAIN ? 0 : errno;
}

static inline void ring_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}
