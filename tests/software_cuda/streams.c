/* A stream is a queue of operations and a thread that does them in order.

   Documented: what is in one stream is done in order; streams wait for each other by events alone; a stream that is
   destroyed is still worked off, and its handle is worth nothing from then on.
   Left out: that the default stream and blocking streams wait for each other.  Waiting less is harder on a program. */

#include "runtime.h"
#include <errno.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
struct stream *streams;
static struct stream *defaults[MOST_DEVICES];

static void sleep_for(double seconds)
{
    struct timespec left = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

static void operate(const struct operation *now)
{
    int64_t *to = now->to, sum = 0, value;
    const int64_t *from = now->from;
    memcpy(&value, now->value, sizeof value);
    switch (now->code) { /* operators.py names them */
    case 0: for (size_t k = 0; k < now->count; k++) ((char *)to)[k] = from[k] != value; break;
    case 1: for (size_t k = 0; k < now->count; k++) sum += ((const char *)from)[k]; *to = sum; break;
    case 2: for (size_t k = 0; k < now->count; k++) sum += from[k]; *to = sum; break;
    case 3: for (size_t k = 0; k < now->count; k++) to[k] += from[k]; break;
    case 4: for (size_t k = 0; k < now->count; k++) to[k] = from[k] * value; break;
    case 5: for (size_t k = 0; k < now->count; k++) to[k] = from[k] + value; break;
    }
}

/* The lock is not held. */
static void run(const struct operation *now)
{
    if (now->late)
        sleep_for(lateness());
    switch (now->kind) {
    case COPY: memmove(now->to, now->staged ? now->staged : now->from, now->count); break;
    case FILL:
        for (size_t k = 0; k < now->count; k++)
            memcpy((char *)now->to + k * now->size, now->value, now->size);
        break;
    case CALL: now->call(now->argument); break;
    case SPIN: sleep_for(now->seconds); break;
    case OPERATOR: operate(now); break;
    case RECORD: case WAIT: break;
    }
}

static void come_to(struct operation *now)
{
    switch (now->kind) {
    case RECORD:
        if (now->turn > now->event->passed)
            now->event->passed = now->turn;
        clock_gettime(CLOCK_MONOTONIC, &now->event->at);
        release(now->event);
        break;
    case WAIT:
        while (now->event->passed < now->turn)
            pthread_cond_wait(&progress, &lock);
        release(now->event);
        break;
    default:
        pthread_mutex_unlock(&lock);
        run(now);
        pthread_mutex_lock(&lock);
    }
}

static void *work(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!stream->first)
            pthread_cond_wait(&stream->work, &lock);
        struct operation *now = stream->first;
        if (!(stream->first = now->next))
            stream->last = &stream->first;
        come_to(now);
        if (now->host) {
            *(now->before ? &now->before->after : &under_way) = now->after;
            if (now->after)
                now->after->before = now->before;
        }
        free(now->staged);
        free(now);
        stream->done++;
        pthread_cond_broadcast(&progress);
    }
    return NULL;
}

struct operation *operation(enum kind kind)
{
    struct operation *made = calloc(1, sizeof *made);
    made->kind = kind;
    return made;
}

uint64_t put(struct stream *stream, struct operation *operation)
{
    if (stream->capturing) {
        *stream->capturing->last = operation;
        stream->capturing->last = &operation->next;
        stream->capturing->count++;
        return 0;
    }
    if (operation->host) {
        operation->before = NULL;
        if ((operation->after = under_way))
            under_way->before = operation;
        under_way = operation;
    }
    if (!stream->started) {
        pthread_t thread;
        stream->started = 1;
        pthread_create(&thread, NULL, work, stream);
        pthread_detach(thread);
    }
    *stream->last = operation;
    stream->last = &operation->next;
    pthread_cond_signal(&stream->work);
    return ++stream->put;
}

void wait_until(struct stream *stream, uint64_t done)
{
    while (stream->done < done)
        pthread_cond_wait(&progress, &lock);
}

void wait_for_device(int device)
{
    for (struct stream *stream = streams; stream; stream = stream->next)
        if (device < 0 || stream->device == device)
            wait_until(stream, stream->put);
}

static struct stream *make(int device, int priority)
{
    struct stream *stream = calloc(1, sizeof *stream);
    stream->device = device;
    stream->priority = priority;
    stream->last = &stream->first;
    stream->next = streams;
    pthread_cond_init(&stream->work, NULL);
    counters[STREAMS]++;
    return streams = stream;
}

struct stream *stream_of(cudaStream_t handle)
{
    struct stream *stream = (struct stream *)handle;
    if ((uintptr_t)handle <= 2) { /* the default ones of this thread's device */
        if (!defaults[current_device])
            defaults[current_device] = make(current_device, 0);
        return defaults[current_device];
    }
    if (stream->destroyed) {
        violation("stream %p is used, which was destroyed", (void *)handle);
        return NULL;
    }
    return stream;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *made, unsigned flags, int priority)
{
    BEGIN("cudaStreamCreateWithPriority");
    pthread_mutex_lock(&lock);
    *made = (cudaStream_t)make(current_device, priority);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *made, unsigned flags)
{
    return cudaStreamCreateWithPriority(made, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *made) { return cudaStreamCreateWithPriority(made, 0, 0); }

/* What it has been given is still done, so it is kept. */
cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    BEGIN("cudaStreamDestroy");
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    if (stream)
        stream->destroyed = 1;
    pthread_mutex_unlock(&lock);
    return stream ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority)
{
    BEGIN("cudaStreamGetPriority");
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    *priority = stream ? stream->priority : 0;
    pthread_mutex_unlock(&lock);
    return stream ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* A stream that is captured can neither be waited for nor asked. */
static cudaError_t may_be_asked(struct stream *stream)
{
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (!stream->capturing)
        return cudaSuccess;
    stream->broken = 1;
    violation("a stream is asked, or waited for, while it is captured");
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    BLOCKING("cudaStreamSynchronize");
    UNSAFE("cudaStreamSynchronize");
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    cudaError_t error = may_be_asked(stream);
    if (!error)
        wait_until(stream, stream->put);
    pthread_mutex_unlock(&lock);
    return failed(error ? error : begin("cudaStreamSynchronize"));
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    BLOCKING("cudaStreamQuery");
    UNSAFE("cudaStreamQuery");
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    cudaError_t error = may_be_asked(stream);
    if (!error && stream->done < stream->put)
        error = cudaErrorNotReady;
    pthread_mutex_unlock(&lock);
    return failed(error);
}

cudaError_t cudaDeviceSynchronize(void)
{
    BLOCKING("cudaDeviceSynchronize");
    UNSAFE("cudaDeviceSynchronize");
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&lock);
    for (struct stream *stream = streams; stream && !error; stream = stream->next)
        if (stream->device == current_device)
            error = may_be_asked(stream); /* also by threads that are relaxed: it encompasses that capture */
    if (!error)
        wait_for_device(current_device);
    pthread_mutex_unlock(&lock);
    return failed(error ? error : begin("cudaDeviceSynchronize"));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t call, void *argument)
{
    BEGIN("cudaLaunchHostFunc");
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    if (stream) {
        struct operation *made = operation(CALL);
        made->call = call;
        made->argument = argument;
        put(stream, made);
    }
    pthread_mutex_unlock(&lock);
    return stream ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}
