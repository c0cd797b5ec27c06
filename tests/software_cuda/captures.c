/* Captures of graphs, and graphs: in which mode and thread an unsafe call breaks a capture.

   Documented: while a stream is captured in the global mode, calls that CUDA calls unsafe are forbidden to all threads
   that have not declared themselves relaxed; in the thread-local mode to the capturing thread.  A forbidden call fails
   and invalidates the capture.
   Left out: captures of several streams, nodes that are changed later, memory nodes. */

#include "runtime.h"

__thread int capture_mode = cudaStreamCaptureModeGlobal;
static uint64_t captures;

int breaks_a_capture(const char *call)
{
    int broken = 0;
    if (capture_mode == cudaStreamCaptureModeRelaxed)
        return 0;
    for (struct stream *stream = streams; stream; stream = stream->next) {
        if (!stream->capturing || stream->mode == cudaStreamCaptureModeRelaxed)
            continue;
        int everyone = stream->mode == cudaStreamCaptureModeGlobal && capture_mode == cudaStreamCaptureModeGlobal;
        if (everyone || pthread_equal(stream->captor, pthread_self()))
            stream->broken = broken = 1;
    }
    if (broken)
        violation("%s breaks a capture", call);
    return broken;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

int status(const struct stream *stream)
{
    if (!stream->capturing)
        return cudaStreamCaptureStatusNone;
    return stream->broken ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *found)
{
    BLOCKING("cudaStreamIsCapturing");
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    if (stream)
        *found = (enum cudaStreamCaptureStatus)status(stream);
    pthread_mutex_unlock(&lock);
    return stream ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, enum cudaStreamCaptureStatus *found, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                     const cudaGraphEdgeData **edges, size_t *count)
{
    BEGIN("cudaStreamGetCaptureInfo");
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    if (stream) {
        *found = (enum cudaStreamCaptureStatus)status(stream);
        if (id)
            *id = stream->capture;
        if (graph)
            *graph = (cudaGraph_t)stream->capturing;
        if (count)
            *count = 0;
    }
    pthread_mutex_unlock(&lock);
    return stream ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    BEGIN("cudaStreamBeginCapture");
    if ((uintptr_t)handle <= 2)
        return failed(cudaErrorStreamCaptureUnsupported); /* the default streams cannot be captured */
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    if (stream) {
        struct graph *graph = calloc(1, sizeof *graph);
        graph->last = &graph->first;
        stream->capturing = graph;
        stream->mode = mode;
        stream->captor = pthread_self();
        stream->broken = 0;
        stream->capture = ++captures;
    }
    pthread_mutex_unlock(&lock);
    return stream ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph)
{
    BEGIN("cudaStreamEndCapture");
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    int broken = !stream || stream->broken;
    *graph = broken ? NULL : (cudaGraph_t)stream->capturing;
    if (stream)
        stream->capturing = NULL;
    pthread_mutex_unlock(&lock);
    return failed(broken ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}

/* An executable graph is the graph itself, and lives for ever. */
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags)
{
    BEGIN("cudaGraphInstantiate");
    *made = (cudaGraphExec_t)graph;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return cudaSuccess; }

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    *count = ((struct graph *)graph)->count;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t handle)
{
    BEGIN("cudaGraphLaunch");
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    for (struct operation *each = ((struct graph *)graph)->first; stream && each; each = each->next) {
        struct operation *again = malloc(sizeof *again);
        *again = *each;
        again->next = NULL;
        put(stream, again);
    }
    pthread_mutex_unlock(&lock);
    return stream ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t *made, void *object, cudaHostFn_t destroy, unsigned count,
                                 unsigned flags)
{
    *made = (cudaUserObject_t)object;
    return cudaSuccess;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) { return cudaSuccess; }

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags)
{
    return cudaSuccess;
}

cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute, void *value)
{
    memset(value, 0, sizeof(uint64_t));
    return cudaSuccess;
}
