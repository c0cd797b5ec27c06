/* libcuda.so.1, as far as torch and shmloader/device ask it.  It only returns its errors, and remembers none.

   Documented: page-locking, and making and recording an event, need a context that is current in the calling thread; the
   default stream is that context's; streams and events are the runtime's. */

#include "runtime.h"

enum { INVALID_CONTEXT = 201, CONTEXT = 0xC000 };

extern int software_cuda_devices(void), software_cuda_is_in_use(int device);
extern void software_cuda_retain(int device);
extern int software_cuda_push(uintptr_t context), software_cuda_pop(uintptr_t *context);
extern uintptr_t software_cuda_context(void);

int cuInit(unsigned flags) { return begin("cuInit"); }

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

int cuDeviceGetCount(int *count)
{
    *count = software_cuda_devices();
    return 0;
}

int cuDeviceGet(int *device, int index)
{
    if (index < 0 || index >= software_cuda_devices())
        return cudaErrorInvalidDevice;
    *device = index;
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = 0;
    return 0;
}

int cuDevicePrimaryCtxRetain(uintptr_t *context, int device)
{
    int error = begin("cuDevicePrimaryCtxRetain");
    if (error)
        return error;
    software_cuda_retain(device);
    *context = CONTEXT + device;
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    blocks("cuDevicePrimaryCtxGetState");
    *flags = 0;
    *active = software_cuda_is_in_use(device) && !is_forked();
    return 0;
}

int cuCtxPushCurrent_v2(uintptr_t context)
{
    int error = begin("cuCtxPushCurrent");
    return error ? error : software_cuda_push(context);
}

int cuCtxPopCurrent_v2(uintptr_t *context) { return software_cuda_pop(context); }

int cuCtxGetCurrent(uintptr_t *context)
{
    *context = software_cuda_context();
    return 0;
}

int cuCtxSetCurrent(uintptr_t context)
{
    uintptr_t before;
    software_cuda_pop(&before);
    return context ? software_cuda_push(context) : 0;
}

static int may_lock(const char *call)
{
    int error = begin(call);
    blocks(call);
    return error ? error : software_cuda_context() ? 0 : INVALID_CONTEXT;
}

int cuMemHostRegister_v2(void *start, size_t size, unsigned flags)
{
    int error = may_lock("cuMemHostRegister");
    return error ? error : lock_pages(start, size, flags);
}

int cuMemHostUnregister(void *start)
{
    int error = may_lock("cuMemHostUnregister");
    if (error == INVALID_CONTEXT)
        violation("memory is unregistered by a thread without a context");
    return error ? error : unlock_pages(start);
}

/* ------------------------------------------------------------------------------------------------ streams, events */

static int may_begin(const char *call)
{
    int error = begin(call);
    blocks(call);
    if (!error && !software_cuda_context()) {
        violation("%s by a thread without a context", call);
        return INVALID_CONTEXT;
    }
    return error;
}

int cuEventCreate(struct event **made, unsigned flags)
{
    int error = may_begin("cuEventCreate");
    if (!error)
        *made = make_event();
    return error;
}

int cuEventRecord(struct event *event, cudaStream_t handle)
{
    int error = may_begin("cuEventRecord");
    if (error)
        return error;
    pthread_mutex_lock(&lock);
    error = record(event, stream_of(handle));
    pthread_mutex_unlock(&lock);
    return error;
}

int cuEventQuery(struct event *event)
{
    int error = begin("cuEventQuery");
    blocks("cuEventQuery");
    if (error)
        return error;
    pthread_mutex_lock(&lock);
    error = breaks_a_capture("cuEventQuery") ? cudaErrorStreamCaptureUnsupported : ask(event);
    pthread_mutex_unlock(&lock);
    return error == cudaErrorNotReady && driver_lies() ? cudaSuccess : error;
}

int cuStreamIsCapturing(cudaStream_t handle, int *found)
{
    int error = may_begin("cuStreamIsCapturing");
    if (error)
        return error;
    pthread_mutex_lock(&lock);
    struct stream *stream = stream_of(handle);
    if (stream)
        *found = status(stream);
    pthread_mutex_unlock(&lock);
    return stream ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

int cuGetErrorName(int error, const char **name)
{
    *name = cudaGetErrorName(error);
    return 0;
}

int cuGetErrorString(int error, const char **text) { return cuGetErrorName(error, text); }

int cuThreadExchangeStreamCaptureMode(int *mode) { return cudaThreadExchangeStreamCaptureMode((void *)mode); }

int cuPointerGetAttribute(void *value, int attribute, uint64_t address) { return cudaErrorInvalidValue; }
