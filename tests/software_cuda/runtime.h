/* A CUDA runtime without a GPU, for torch's own CUDA build.  It makes copies as late as CUDA allows, and it reports
   every call and access that CUDA forbids.

   NOTE [ Software CUDA ]

   The runtime takes the place of libcudart and libcuda.  Above it, torch's streams, events, caching allocators, pinned
   copies and graph captures run unchanged.

       ledger.c    which host memory is page-locked, and which memory is a device's; finds registrations and unmappings
                   that are forbidden
       streams.c   a stream is a queue and a thread
       events.c    an event marks a place in a stream
       copies.c    a copy is late, and reads its source only when its turn comes
       memory.c    a device's memory is the host's
       captures.c  graphs, and calls that are forbidden while one is captured
       kernels.c   the kernels that it knows by name, and the operators that operators.py adds
       devices.c   how many devices there are, and what they are like
       faults.c    errors: the last one of a thread, those that stick, those that tests request; counts and the log
       driver.c    libcuda.so.1: the functions that torch and shmloader call
       unmapping.c is preloaded, and reports which memory is unmapped

   A VIOLATION is what CUDA's documentation forbids, or what would read memory that is not there.  It is logged and
   counted, and the tests fail.  The runtime shows nothing about a real driver: neither its speed, nor where it
   synchronises implicitly (this runtime never does), nor exactly which calls break a capture.

   `lock` guards everything below, unless a comment excepts it. */

#ifndef SOFTWARE_CUDA_H
#define SOFTWARE_CUDA_H

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "driver_types.h"

#define MOST_DEVICES 8

extern pthread_mutex_t lock;
extern pthread_cond_t progress;       /* an operation of some stream is done */
extern __thread int current_device;   /* of this thread: cudaSetDevice */

/* ------------------------------------------------------------------------------------------------ streams, events */

struct event {
    int device, references, captured;
    uint64_t recorded, passed;        /* how often; it has passed when these are the same */
    struct timespec at;
};

enum kind { COPY, FILL, RECORD, WAIT, CALL, SPIN, OPERATOR };

struct operation {
    struct operation *next;
    enum kind kind;
    struct event *event;              /* RECORD, WAIT: */
    uint64_t turn;                    /* of the event's recordings, which */
    void *to;                         /* COPY, FILL, OPERATOR: */
    const void *from;
    size_t count;
    void *staged;                     /* the source as it was, where that is not page-locked */
    int late;
    const void *host;                 /* host memory that is read or written, as long as this is under way; or NULL */
    struct operation *before, *after; /* in the list of those */
    char value[16];                   /* FILL: */
    int size;
    void (*call)(void *);             /* CALL: */
    void *argument;
    double seconds;                   /* SPIN: */
    int code;                         /* OPERATOR: */
};

struct graph {
    struct operation *first, **last;
    size_t count;
};

struct stream {
    struct stream *next;
    int device, priority, started, destroyed;
    uint64_t put, done;               /* operations */
    struct operation *first, **last;
    pthread_cond_t work;
    struct graph *capturing;          /* or NULL */
    int mode, broken;                 /* of the capture */
    pthread_t captor;
    uint64_t capture;
};

extern struct stream *streams;

struct stream *stream_of(cudaStream_t handle);  /* NULL, after a violation: there is none any more */
struct operation *operation(enum kind kind);
uint64_t put(struct stream *stream, struct operation *operation);
void wait_until(struct stream *stream, uint64_t done);
void wait_for_device(int device);               /* -1: for all */
void release(struct event *event);
struct event *make_event(void);                 /* of this thread's device */
cudaError_t record(struct event *event, struct stream *stream);
cudaError_t ask(struct event *event);

void use_device(void);

/* ---------------------------------------------------------------------------------------------------- the ledger */

enum place { PAGEABLE, LOCKED, DEVICE, ACROSS };  /* ACROSS: the end of a registration lies in the middle */

struct range {
    uintptr_t start;
    size_t size;
    enum { REGISTERED, ALLOCATED, OF_DEVICE } kind;
    int device;
};

void enter_range(void *start, size_t size, int kind);
int leave_range(void *start, int kind, size_t *size);   /* whether it was there */
struct range *range_at(const void *address);
enum place place_of(const void *start, size_t size);
int is_under_way(const void *start, size_t size);       /* whether a copy reads or writes there */
extern struct operation *under_way;                     /* those with a `host` */
cudaError_t lock_pages(void *start, size_t size, unsigned flags);
cudaError_t unlock_pages(void *start);

/* ---------------------------------------------------------------------------------------------- captures, faults */

extern __thread int capture_mode;
int status(const struct stream *stream);        /* of its capture */
int breaks_a_capture(const char *call);         /* whether this call, by this thread, is illegal now */

void software_cuda_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
cudaError_t failed(cudaError_t error);          /* notes this thread's last error; returns it */
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorName(cudaError_t error);
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode);
cudaError_t begin(const char *call);            /* of every call: the error it must return at once, or 0 */
void blocks(const char *call);                  /* of a call that may wait: was the GIL held?  What has a test ordered? */
int driver_lies(void);                          /* it says that all events have passed: a test has ordered that */
cudaError_t ordered_refusal(size_t in_all);     /* of page-locking, by a test: so many bytes with these */
int is_forked(void);
int has_failed(void);                           /* for good: it does nothing any more */
void count_copy(int to_device);                 /* may make an error stick */
double lateness(void);                          /* seconds */
int any_lateness(void);

enum counter { REGISTRATIONS, UNREGISTRATIONS, MOST_REGISTERED, COPIES, LATE, STAGED, KERNELS, UNKNOWN, MISSING,
               VIOLATIONS, STREAMS, COUNTERS };
extern long counters[COUNTERS];

/* of the runtime's calls, which give the device, and this thread, a context where there is none */
#define BEGIN(call) do { \
        cudaError_t error_ = begin(call); \
        if (error_) return failed(error_); \
        use_device(); \
    } while (0)
#define BLOCKING(call) do { BEGIN(call); blocks(call); } while (0)
/* of calls that CUDA calls unsafe while another stream is captured; takes the lock itself */
#define UNSAFE(call) do { \
        pthread_mutex_lock(&lock); \
        int illegal_ = breaks_a_capture(call); \
        pthread_mutex_unlock(&lock); \
        if (illegal_) return failed(cudaErrorStreamCaptureUnsupported); \
    } while (0)

#endif
