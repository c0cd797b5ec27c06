/* Preloaded munmap() and madvise(): they tell the runtime, where it is loaded, which memory goes. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void tell(void *start, size_t size, const char *how)
{
    static void (*unmapped)(void *, size_t, const char *);
    if (!unmapped) /* torch loads the runtime for all to see */
        unmapped = dlsym(RTLD_DEFAULT, "software_cuda_unmapped");
    if (unmapped)
        unmapped(start, size, how);
}

int munmap(void *start, size_t size)
{
    tell(start, size, "munmap");
    return syscall(SYS_munmap, start, size);
}

int madvise(void *start, size_t size, int advice)
{
    if (advice == MADV_REMOVE)
        tell(start, size, "MADV_REMOVE");
    return syscall(SYS_madvise, start, size, advice);
}
