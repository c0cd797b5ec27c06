"""atomics.h for Cython: the shared words, and the verbs that touch them."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from posix.time cimport timespec

cdef extern from "atomics.h" nogil:
    enum: RING_MAGIC, RING_VERSION, RING_ANY, RING_LINE
    const int64_t RING_NO_EPOCH
    # where tests have a worker die
    enum: AFTER_CLAIM, WHILE_FILLING, AFTER_OVERFLOW, WHILE_REMEMBERING, BEFORE_PUBLISH, AFTER_PUBLISH, AFTER_BELL
    enum: AFTER_ANNOUNCE
    void RING_STEP(int step)
    enum: RING_VOID, RING_OPEN, RING_CLAIMED, RING_READY
    ctypedef struct word_t "_Atomic uint64_t":
        pass
    ctypedef struct bell_t "_Atomic uint32_t":
        pass
    ctypedef struct ring_ask:
        uint64_t seed
        uint32_t task_size, task_kind, payload, batch, row, rows, epoch, cell
        int64_t dataset_epoch
    ctypedef struct ring_answer:
        uint64_t used, objects_at, objects_size
        uint32_t meta_at, meta_size, plan_at, plan_size, outcome, state_size
    ctypedef struct ring_entry:
        word_t claimed_at, fetched_at, published_at
        ring_ask ask
        ring_answer answer
    enum: RING_STARTS, RING_WAITS, RING_FETCHES, RING_COLLATES, RING_DOINGS
    ctypedef struct ring_memory:
        uint64_t size
    ctypedef struct ring_worker:
        bell_t bell
        bell_t dismissed
        word_t doing, pid, published, filled, fetched_ns, collated_ns, idle_ns, behind_ns, cpu_ns, delayed_ns, probed_ns
    ctypedef struct ring_header:
        uint64_t magic
        uint32_t version, workers, entries, payloads, in_order, batches
        uint64_t epoch_seed
        uint64_t area_at, area_stride, slot_at, slot_stride, started_at, trainer
        bell_t ready_bell
        bell_t stop
        bell_t folds
        word_t asked_at, waited_ns, stepped_ns, epoch, opened, taken, samples, bytes, asked, empty, ready
        word_t lent, copied, deaths, user_waited_ns, user_stepped_ns
        char label[128]
    ctypedef struct ring_payload:
        uint32_t overflowed
    uint64_t ring_seq(uint64_t word)
    uint32_t ring_owner(uint64_t word)
    uint32_t ring_state(uint64_t word)
    uint64_t ring_load(const ring_entry *entry)
    bint ring_claim(ring_entry *entry, uint64_t seq, uint32_t who, uint32_t me)
    bint ring_publish(ring_entry *entry, uint64_t seq, uint32_t me)
    bint ring_revoke(ring_entry *entry, uint64_t seq, uint32_t dead, uint32_t who)
    void ring_note_revoked(ring_header *header)
    uint32_t ring_revocations(const ring_header *header)
    void ring_open(ring_entry *entry, uint64_t seq, uint32_t owner)
    void ring_raise(bell_t *flag)
    bint ring_raised(const bell_t *flag)
    void ring_note_committed(ring_payload *payload, uint64_t bytes)
    void ring_forget_committed(ring_payload *payload, uint64_t left)
    uint64_t ring_committed(const ring_payload *payload)
    void ring_note_folded(ring_header *header)
    uint32_t ring_folds(const ring_header *header)
    void ring_note(word_t *figure, uint64_t value)
    uint64_t ring_noted(const word_t *figure)
    void ring_add(word_t *figure, uint64_t more)
    void ring_note_doing(ring_worker *worker, uint32_t what, uint64_t since)
    void ring_remember(ring_memory *memory, uint64_t seq)
    void ring_forget(ring_memory *memory)
    uint64_t ring_remembered(const ring_memory *memory)
    uint64_t ring_once(const uint64_t *word)
    uint32_t ring_once_32(const uint32_t *word)
    bint ring_ring(bell_t *bell)
    void ring_toll(bell_t *bell)
    uint32_t ring_announce(bell_t *bell)
    void ring_rise(bell_t *bell)
    int ring_sleep(bell_t *bell, uint32_t seen, const timespec *deadline)
    enum: CACHE_EMPTY, CACHE_CLAIM, CACHE_ENTRY, CACHE_UNIT, CACHE_LINES, CACHE_VERSION
    uint64_t CACHE_MAGIC
    ctypedef struct cache_line:
        word_t found, kept, missed, missed_bytes, others
    ctypedef struct cache_header:
        uint64_t magic, version, slots, table_at, bytes_at
        word_t used, budget, full, readers
        cache_line lines[64]
    uint64_t cache_claim_of(uint64_t pid, uint64_t start)
    uint64_t cache_entry_of(uint64_t tag, uint64_t place)
    uint32_t cache_state(uint64_t word)
    uint64_t cache_pid(uint64_t word)
    uint64_t cache_start(uint64_t word)
    uint64_t cache_tag(uint64_t word)
    uint64_t cache_place(uint64_t word)
    uint64_t cache_look(const word_t *word)
    bint cache_claim(word_t *word, uint64_t seen, uint64_t mine)
    uint64_t cache_reserve(cache_header *header, uint64_t bytes)
    bint cache_publish(word_t *word, uint64_t mine, uint64_t entry)
    bint cache_release(word_t *word, uint64_t mine)
    uint64_t cache_count(word_t *figure, uint64_t more)
    bint cache_raise(word_t *figure, uint64_t value)
