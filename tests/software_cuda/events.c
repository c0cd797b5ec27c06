/* Events: when one has passed, on which streams it may be recorded, and when it may be neither asked nor waited for.

   Documented: an event stands for its last recording; it passes when all that was in the stream before is done; one that
   was recorded in a capture can be neither asked nor waited for by a thread; event and stream are of one device.
   Left out: events between processes, and the fork and join of a capture over several streams. */

#include "runtime.h"

void release(struct event *event)
{
    if (--event->references == 0)
        free(event);
}

struct event *make_event(void)
{
    struct event *event = calloc(1, sizeof *event);
    event->device = current_device;
    event->references = 1;
    return event;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *made, unsigned flags)
{
    BEGIN("cudaEventCreate");
    *made = (cudaEvent_t)make_event();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *made) { return cudaEventCreateWithFlags(made, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
    if (is_forked())
        return failed(cudaErrorInitializationError);
    pthread_mutex_lock(&lock);
    release((struct event *)handle);
    pthread_mutex_unlock(&lock);
    return failed(begin("cudaEventDestroy"));
}

cudaError_t record(struct event *event, struct stream *stream)
{
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (event->device != stream->device) {
        violation("an event of device %d is recorded on a stream of device %d", event->device, stream->device);
        return cudaErrorInvalidResourceHandle;
    }
    event->captured = stream->capturing != NULL;
    if (event->captured)
        return cudaSuccess;
    if (stream->done == stream->put && !any_lateness()) { /* it has nothing to do, and nobody wants it late */
        event->passed = ++event->recorded;
        clock_gettime(CLOCK_MONOTONIC, &event->at);
        return cudaSuccess;
    }
    struct operation *made = operation(RECORD);
    made->event = event;
    made->turn = ++event->recorded;
    event->references++;
    put(stream, made);
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned flags)
{
    BLOCKING("cudaEventRecord");
    pthread_mutex_lock(&lock);
    cudaError_t error = record((struct event *)event, stream_of(handle));
    pthread_mutex_unlock(&lock);
    return failed(error);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }

static cudaError_t may_be_asked(const struct event *event)
{
    if (!event->captured)
        return cudaSuccess;
    violation("an event is asked, or waited for, that was recorded in a capture");
    return cudaErrorCapturedEvent;
}

cudaError_t ask(struct event *event)
{
    cudaError_t error = may_be_asked(event);
    return error ? error : event->passed < event->recorded ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    BLOCKING("cudaEventQuery");
    UNSAFE("cudaEventQuery");
    pthread_mutex_lock(&lock);
    cudaError_t error = ask((struct event *)handle);
    pthread_mutex_unlock(&lock);
    return failed(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    struct event *event = (struct event *)handle;
    BLOCKING("cudaEventSynchronize");
    UNSAFE("cudaEventSynchronize");
    pthread_mutex_lock(&lock);
    cudaError_t error = may_be_asked(event);
    uint64_t turn = event->recorded;
    event->references++;
    while (!error && event->passed < turn)
        pthread_cond_wait(&progress, &lock);
    release(event);
    pthread_mutex_unlock(&lock);
    return failed(error ? error : begin("cudaEventSynchronize"));
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    const struct timespec *a = &((struct event *)from)->at, *b = &((struct event *)to)->at;
    BEGIN("cudaEventElapsedTime");
    *milliseconds = (b->tv_sec - a->tv_sec) * 1e3 + (b->tv_nsec - a->tv_nsec) / 1e6;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t waited, unsigned flags)
{
    struct event *event = (struct event *)waited;
    cudaError_t error = cudaSuccess;
    BEGIN("cudaStreamWaitEvent");
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    if (!stream)
        error = cudaErrorInvalidResourceHandle;
    else if (stream->capturing && !event->captured) {
        stream->broken = 1;
        violation("a stream that is captured waits for an event from outside of the capture");
        error = cudaErrorStreamCaptureIsolation;
    } else if (event->captured && !stream->capturing) {
        violation("a stream joins a capture: the software CUDA cannot do that");
        error = cudaErrorNotSupported;
    } else if (!event->captured && event->recorded) {
        struct operation *made = operation(WAIT);
        made->event = event;
        made->turn = event->recorded;
        event->references++;
        put(stream, made);
    }
    pthread_mutex_unlock(&lock);
    return failed(error);
}
