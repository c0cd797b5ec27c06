/* Allocation: a device's memory is the host's, reserved and not filled, so tests can look at it.

   Documented: cudaFree and cudaFreeHost wait for what the device still does.
   Left out: memory pools (the stream-ordered allocator allocates at once), how much there is. */

#include "runtime.h"
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static cudaError_t allocate(void **made, size_t size, int kind)
{
    void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    pthread_mutex_lock(&lock);
    enter_range(start, size, kind);
    pthread_mutex_unlock(&lock);
    *made = start;
    return cudaSuccess;
}

static cudaError_t give_back(void *start, int kind)
{
    size_t size = 0;
    pthread_mutex_lock(&lock);
    wait_for_device(-1);
    int known = leave_range(start, kind, &size);
    pthread_mutex_unlock(&lock);
    if (!known)
        return cudaErrorInvalidValue;
    syscall(SYS_munmap, start, size); /* not by way of unmapping.c */
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **made, size_t size)
{
    BLOCKING("cudaMalloc");
    UNSAFE("cudaMalloc");
    return failed(allocate(made, size, OF_DEVICE));
}

cudaError_t cudaFree(void *start)
{
    BLOCKING("cudaFree");
    if (!start)
        return cudaSuccess; /* which is how programs have the device initialised */
    UNSAFE("cudaFree");
    return failed(give_back(start, OF_DEVICE));
}

cudaError_t cudaMallocAsync(void **made, size_t size, cudaStream_t stream) { return cudaMalloc(made, size); }
cudaError_t cudaFreeAsync(void *start, cudaStream_t stream) { return cudaFree(start); }

cudaError_t cudaHostAlloc(void **made, size_t size, unsigned flags)
{
    BLOCKING("cudaHostAlloc");
    UNSAFE("cudaHostAlloc");
    return failed(allocate(made, size, ALLOCATED));
}

cudaError_t cudaFreeHost(void *start)
{
    BLOCKING("cudaFreeHost");
    UNSAFE("cudaFreeHost");
    return failed(give_back(start, ALLOCATED));
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    BEGIN("cudaMemGetInfo");
    *left = 79ul << 30;
    *all = 80ul << 30;
    return cudaSuccess;
}
