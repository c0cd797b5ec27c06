/* Copies, the same memory being both the host's and the device's: which are late, which are staged, and which have
   ended when the call returns.  A copy across the end of a registration is a violation.

   Documented: a copy out of page-locked memory is asynchronous, and reads its source at any time until it is done: here
   as late as possible.  One out of pageable memory has been staged when the call returns; one into pageable memory is done
   when the call returns.  Neither can be captured.
   Left out: strided copies in one piece (they are many), managed memory. */

#include "runtime.h"

static cudaError_t capture_copy(struct stream *stream, struct operation *made, enum place from, enum place to)
{
    if (from == PAGEABLE || to == PAGEABLE) {
        stream->broken = 1;
        violation("a copy of pageable memory is captured");
        free(made);
        return cudaErrorStreamCaptureUnsupported;
    }
    put(stream, made);
    return cudaSuccess;
}

static cudaError_t copy(void *to, const void *from, size_t size, cudaStream_t handle, int wait)
{
    if (!size)
        return cudaSuccess;
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    enum place source = place_of(from, size), target = place_of(to, size);
    cudaError_t error = cudaSuccess;
    if (!stream)
        error = cudaErrorInvalidResourceHandle;
    else if (source == ACROSS || target == ACROSS) {
        violation("a copy of %zu bytes crosses the end of a registration", size);
        error = cudaErrorInvalidValue;
    }
    if (error) {
        pthread_mutex_unlock(&lock);
        return error;
    }
    struct operation *made = operation(COPY);
    made->to = to;
    made->from = from;
    made->count = size;
    if (stream->capturing) {
        error = capture_copy(stream, made, source, target);
        pthread_mutex_unlock(&lock);
        return error;
    }
    if (source == LOCKED || target == LOCKED)
        made->host = source == LOCKED ? from : to;
    if (source == LOCKED && any_lateness()) {
        made->late = 1;
        counters[LATE]++;
    }
    if (source == PAGEABLE && target == DEVICE) {
        if (breaks_a_capture("a copy of pageable memory")) {
            free(made);
            pthread_mutex_unlock(&lock);
            return cudaErrorStreamCaptureUnsupported;
        }
        made->staged = malloc(size);
        pthread_mutex_unlock(&lock);
        memcpy(made->staged, from, size);
        pthread_mutex_lock(&lock);
        counters[STAGED]++;
    }
    uint64_t turn = put(stream, made);
    if (wait || (source == DEVICE && target == PAGEABLE))
        wait_until(stream, turn);
    pthread_mutex_unlock(&lock);
    count_copy(source != DEVICE && target == DEVICE);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    BLOCKING("cudaMemcpyAsync");
    return failed(copy(to, from, size, stream, 0));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind)
{
    BLOCKING("cudaMemcpy");
    UNSAFE("cudaMemcpy");
    return failed(copy(to, from, size, NULL, 1));
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
                                cudaStream_t stream)
{
    BEGIN("cudaMemcpyPeerAsync");
    return failed(copy(to, from, size, stream, 0));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    BLOCKING("cudaMemcpy2DAsync");
    cudaError_t error = cudaSuccess;
    for (size_t k = 0; k < height && !error; k++)
        error = copy((char *)to + k * to_pitch, (const char *)from + k * from_pitch, width, stream, 0);
    return failed(error);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t handle)
{
    BEGIN("cudaMemsetAsync");
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    if (stream) {
        struct operation *made = operation(FILL);
        made->to = to;
        made->count = size;
        made->size = 1;
        made->value[0] = (char)value;
        put(stream, made);
    }
    pthread_mutex_unlock(&lock);
    return stream ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaMemset(void *to, int value, size_t size) { return cudaMemsetAsync(to, value, size, NULL); }
