/* How many devices there are (SOFTWARE_CUDA_DEVICES=2, default 1), what they are like, and which device and context a
   thread has. */

#include "runtime.h"
#include <dlfcn.h>
#include <stdio.h>

enum { FIRST_CONTEXT = 0xC000 };

__thread int current_device;
static __thread int chosen;              /* this thread has a context */
static __thread struct { uintptr_t context; int before; } contexts[32];  /* pushed by the driver's calls */
static __thread int pushed;
static int in_use[MOST_DEVICES];         /* the device has a primary context */

void use_device(void) { in_use[current_device] = chosen = 1; }

static int devices(void)
{
    static int found;
    const char *value = getenv("SOFTWARE_CUDA_DEVICES");
    if (!found)
        found = value ? atoi(value) : 1;
    return found < MOST_DEVICES ? found : MOST_DEVICES;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = is_forked() ? 0 : devices();
    return failed(is_forked() ? cudaErrorInitializationError : cudaSuccess);
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    BEGIN("cudaSetDevice");
    if (device < 0 || device >= devices())
        return failed(cudaErrorInvalidDevice);
    current_device = device;
    use_device();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device)
{
    memset(found, 0, sizeof *found);
    snprintf(found->name, sizeof found->name, "a device of the software CUDA");
    found->totalGlobalMem = 80ul << 30;
    found->sharedMemPerBlock = 49152;
    found->sharedMemPerBlockOptin = 232448;
    found->sharedMemPerMultiprocessor = 233472;
    found->regsPerBlock = 65536;
    found->warpSize = 32;
    found->maxThreadsPerBlock = 1024;
    found->maxThreadsPerMultiProcessor = 2048;
    found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024;
    found->maxThreadsDim[2] = 64;
    found->maxGridSize[0] = 0x7fffffff;
    found->maxGridSize[1] = found->maxGridSize[2] = 65535;
    found->totalConstMem = 65536;
    found->major = 9;
    found->multiProcessorCount = 132;
    found->unifiedAddressing = found->canMapHostMemory = found->concurrentKernels = 1;
    found->asyncEngineCount = 3;
    found->l2CacheSize = 50 << 20;
    found->pciBusID = 1 + device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9
             : attribute == cudaDevAttrMultiProcessorCount  ? 132
                                                            : attribute == cudaDevAttrUnifiedAddressing;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device)
{
    snprintf(id, size, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

/* ----------------------------------------------------------------------------------------------- for driver.c */

static int unsupported(void) { return cudaErrorNotSupported; }

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result)
{
    static void *driver;
    if (!driver)
        driver = dlopen("libcuda.so.1", RTLD_NOW);
    *found = driver ? dlsym(driver, name) : NULL;
    if (!*found)
        *found = (void *)unsupported;
    if (result)
        *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

int software_cuda_devices(void) { return devices(); }
int software_cuda_is_in_use(int device) { return device >= 0 && device < devices() && in_use[device]; }
void software_cuda_retain(int device) { in_use[device] = 1; }

/* Pushing a context makes its device this thread's; that holds for the runtime too. */
int software_cuda_push(uintptr_t context)
{
    if (pushed == 32)
        return cudaErrorInvalidValue;
    contexts[pushed].context = context;
    contexts[pushed++].before = current_device;
    current_device = context - FIRST_CONTEXT;
    return 0;
}

int software_cuda_pop(uintptr_t *context)
{
    if (!pushed)
        return cudaErrorDeviceUninitialized;
    *context = contexts[--pushed].context;
    current_device = contexts[pushed].before;
    return 0;
}

/* The context that is current in this thread, or 0. */
uintptr_t software_cuda_context(void)
{
    if (pushed)
        return contexts[pushed - 1].context;
    return chosen ? FIRST_CONTEXT + current_device : 0;
}
