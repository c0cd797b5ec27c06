/* Errors, as CUDA documents them: each thread has a last one; one that sticks is returned by all calls from then on, in
   all threads, until the process ends; and what a test orders.  Also what is counted and logged.

   SOFTWARE_CUDA_LATE_MS=5-50     copies out of page-locked memory are that late
   SOFTWARE_CUDA_REFUSE=712@3     page-locking fails with this error, from the third time on (counted from 0)
   SOFTWARE_CUDA_LOCKABLE=bytes   no more than these can be page-locked by registration
   SOFTWARE_CUDA_STICK=710@50     the 50th copy to the device breaks it, with this error
   SOFTWARE_CUDA_GIL=1            count calls that may block, and those of them that are made with Python's GIL held
   SOFTWARE_CUDA_LOG=file         instead of stderr */

#include "runtime.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

long counters[COUNTERS];
static const char *const names[COUNTERS] = {"registrations", "unregistrations", "most registered", "copies", "late",
                                            "staged", "kernels", "unknown", "missing", "violations", "streams"};
static __thread cudaError_t last;
static volatile cudaError_t stuck;
static int log_to = 2, used, forked;
static double earliest, latest;
static long refuse_after = -1, stick_at = -1, lockable;
static int refusal, sticks;

static struct { const char *call; long calls, held; } blocking[64];
static int (*gil_is_held)(void);
static const char *volatile awaited;  /* a call */
static void (*ordered)(void);         /* is done where that is made next */
static int lies;

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void in_parent(void) { pthread_mutex_unlock(&lock); }

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    forked = used;
    under_way = NULL;
}

__attribute__((constructor)) static void configure(void)
{
    const char *value;
    if ((value = getenv("SOFTWARE_CUDA_LATE_MS")) && sscanf(value, "%lf-%lf", &earliest, &latest) == 1)
        latest = earliest;
    if ((value = getenv("SOFTWARE_CUDA_REFUSE")))
        sscanf(value, "%d@%ld", &refusal, &refuse_after);
    if ((value = getenv("SOFTWARE_CUDA_LOCKABLE")))
        lockable = atol(value);
    if ((value = getenv("SOFTWARE_CUDA_STICK")))
        sscanf(value, "%d@%ld", &sticks, &stick_at);
    if ((value = getenv("SOFTWARE_CUDA_LOG")))
        log_to = open(value, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
    if (getenv("SOFTWARE_CUDA_GIL"))
        gil_is_held = dlsym(RTLD_DEFAULT, "PyGILState_Check");
    pthread_atfork(before_fork, in_parent, in_child);
}

static void say(const char *what, const char *format, va_list arguments)
{
    char line[700];
    int length = snprintf(line, sizeof line, "[software CUDA %d] %s", (int)getpid(), what);
    length += vsnprintf(line + length, sizeof line - length - 1, format, arguments);
    if (length > (int)sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    if (write(log_to, line, length) < 0)
        abort();
}

void software_cuda_log(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say("", format, arguments);
    va_end(arguments);
}

void violation(const char *format, ...)
{
    va_list arguments;
    __sync_fetch_and_add(&counters[VIOLATIONS], 1);
    va_start(arguments, format);
    say("VIOLATION ", format, arguments);
    va_end(arguments);
}

/* What is still page-locked, or under way, when a process ends is freed by its end, as by a driver; it is reported. */
__attribute__((destructor)) static void end(void)
{
    if (used && !forked && under_way)
        software_cuda_log("the process ends with copies under way");
}

/* -------------------------------------------------------------------------------------------------------- errors */

cudaError_t failed(cudaError_t error)
{
    if (error)
        last = error;
    return error;
}

cudaError_t cudaPeekAtLastError(void) { return stuck ? stuck : last; }

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = cudaPeekAtLastError();
    last = 0;
    return error;
}

cudaError_t begin(const char *call)
{
    used = 1;
    if (forked) {
        violation("%s in a process that was forked from one that uses the device", call);
        return cudaErrorInitializationError;
    }
    return stuck;
}

int is_forked(void) { return forked; }
int has_failed(void) { return stuck; }

void count_copy(int to_device)
{
    if (to_device && __sync_fetch_and_add(&counters[COPIES], 1) == stick_at)
        stuck = sticks;
}

cudaError_t ordered_refusal(size_t in_all)
{
    if (refuse_after >= 0 && counters[REGISTRATIONS] >= refuse_after)
        return refusal;
    return lockable && (long)in_all > lockable ? cudaErrorMemoryAllocation : cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch ((int)error) {
    case 0: return "cudaSuccess";
    case 1: return "cudaErrorInvalidValue";
    case 2: return "cudaErrorMemoryAllocation";
    case 3: return "cudaErrorInitializationError";
    case 201: return "CUDA_ERROR_INVALID_CONTEXT";
    case 400: return "cudaErrorInvalidResourceHandle";
    case 600: return "cudaErrorNotReady";
    case 700: return "cudaErrorIllegalAddress";
    case 710: return "cudaErrorAssert";
    case 712: return "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED";
    case 713: return "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED";
    case 801: return "CUDA_ERROR_NOT_SUPPORTED";
    case 900: return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    case 901: return "cudaErrorStreamCaptureInvalidated";
    default: return "an error of the software CUDA";
    }
}

const char *cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

/* A function that is only a stub: stubs.py. */
long software_cuda_missing(const char *name)
{
    __sync_fetch_and_add(&counters[MISSING], 1);
    software_cuda_log("missing: %s", name);
    return failed(cudaErrorNotSupported);
}

/* ------------------------------------------------------------------------------------------------- lateness, GIL */

int any_lateness(void) { return latest > 0; }

double lateness(void)
{
    static __thread unsigned seed;
    if (!seed)
        seed = (unsigned)(uintptr_t)&seed ^ getpid();
    return (earliest + (latest - earliest) * rand_r(&seed) / RAND_MAX) / 1e3;
}

void blocks(const char *call)
{
    if (awaited && !strcmp(awaited, call)) {
        awaited = NULL;
        ordered();
    }
    if (!gil_is_held)
        return;
    int held = gil_is_held();
    pthread_mutex_lock(&lock);
    for (int k = 0; k < 64; k++)
        if (!blocking[k].call || !strcmp(blocking[k].call, call)) {
            blocking[k].call = call;
            blocking[k].calls++;
            blocking[k].held += held;
            break;
        }
    pthread_mutex_unlock(&lock);
}

/* ----------------------------------------------------------------------------------------------- for tests: ctypes */

void software_cuda_late(double from_ms, double to_ms)
{
    earliest = from_ms;
    latest = to_ms;
}

void software_cuda_refuse(int error, long after)
{
    refusal = error;
    refuse_after = error ? counters[REGISTRATIONS] + after : -1;
}

void software_cuda_stick(int error) { stuck = error; }

void software_cuda_before(const char *call, void (*function)(void))
{
    ordered = function;
    awaited = function ? call : NULL;
}

void software_cuda_lie(int on) { lies = on; }
int driver_lies(void) { return lies; }

long software_cuda_blocked(const char *call, int held)
{
    for (int k = 0; k < 64 && blocking[k].call; k++)
        if (!strcmp(blocking[k].call, call))
            return held ? blocking[k].held : blocking[k].calls;
    return 0;
}

const char *software_cuda_blocking(int k) { return blocking[k].call; }

long software_cuda_count(const char *name)
{
    for (int k = 0; k < COUNTERS; k++)
        if (!strcmp(names[k], name))
            return counters[k];
    return -1;
}
