/* Which memory is what: page-locked by registration, allocated page-locked, or a device's.

   Documented: a range is registered once; what is unregistered starts where it was registered; a copy may not cross the
   end of a registration.  A range that is unmapped must not be registered, and no copy may be under way there.
   Left out: read-only registrations, mapped device addresses that differ from the host's, portable or not. */

#include "runtime.h"
#include <sys/mman.h>

static struct range *ranges;
static size_t count, room;
struct operation *under_way;

void enter_range(void *start, size_t size, int kind)
{
    if (count == room)
        ranges = realloc(ranges, sizeof *ranges * (room = room ? 2 * room : 256));
    ranges[count++] = (struct range){(uintptr_t)start, size, kind, current_device};
}

int leave_range(void *start, int kind, size_t *size)
{
    for (size_t k = 0; k < count; k++)
        if (ranges[k].kind == kind && ranges[k].start == (uintptr_t)start) {
            if (size)
                *size = ranges[k].size;
            ranges[k] = ranges[--count];
            return 1;
        }
    return 0;
}

struct range *range_at(const void *address)
{
    for (size_t k = 0; k < count; k++)
        if ((uintptr_t)address - ranges[k].start < ranges[k].size)
            return &ranges[k];
    return NULL;
}

enum place place_of(const void *start, size_t size)
{
    struct range *range = range_at(start);
    if (!range)
        return range_at((const char *)start + size - 1) ? ACROSS : PAGEABLE;
    if ((uintptr_t)start + size > range->start + range->size)
        return ACROSS;
    return range->kind == OF_DEVICE ? DEVICE : LOCKED;
}

static int overlap(uintptr_t a, size_t size, uintptr_t b, size_t other) { return a < b + other && b < a + size; }

int is_under_way(const void *start, size_t size)
{
    for (struct operation *copy = under_way; copy; copy = copy->after)
        if (overlap((uintptr_t)start, size, (uintptr_t)copy->host, copy->count))
            return 1;
    return 0;
}

static long registered(void)
{
    long found = 0;
    for (size_t k = 0; k < count; k++)
        found += ranges[k].kind == REGISTERED;
    return found;
}

static cudaError_t may_be_locked(void *start, size_t size)
{
    unsigned char resident;
    uintptr_t from = (uintptr_t)start;
    size_t in_all = size;
    if (breaks_a_capture("registering memory"))
        return cudaErrorStreamCaptureUnsupported;
    if (!start || !size)
        return cudaErrorInvalidValue;
    for (size_t k = 0; k < count; k++) {
        if (ranges[k].kind != OF_DEVICE && overlap(from, size, ranges[k].start, ranges[k].size))
            return cudaErrorHostMemoryAlreadyRegistered;
        in_all += ranges[k].kind == REGISTERED ? ranges[k].size : 0;
    }
    for (uintptr_t page = from & ~4095ul; page < from + size; page += 4096)
        if (mincore((void *)page, 4096, &resident)) {
            violation("%p is registered, which is not mapped", (void *)page);
            return cudaErrorInvalidValue;
        }
    return ordered_refusal(in_all);
}

cudaError_t lock_pages(void *start, size_t size, unsigned flags)
{
    pthread_mutex_lock(&lock);
    cudaError_t error = may_be_locked(start, size);
    if (!error) {
        for (uintptr_t at = (uintptr_t)start; at < (uintptr_t)start + size; at += 4096)
            (void)*(volatile char *)at; /* a driver faults them in; beyond the end of a file that is SIGBUS */
        enter_range(start, size, REGISTERED);
        counters[REGISTRATIONS]++;
        if (registered() > counters[MOST_REGISTERED])
            counters[MOST_REGISTERED] = registered();
    }
    pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t unlock_pages(void *start)
{
    cudaError_t error = cudaErrorHostMemoryNotRegistered;
    pthread_mutex_lock(&lock);
    struct range *range = range_at(start);
    size_t size = range ? range->size : 0;
    if (breaks_a_capture("unregistering memory"))
        error = cudaErrorStreamCaptureUnsupported;
    else if (leave_range(start, REGISTERED, NULL)) {
        if (is_under_way(start, size))
            violation("%p is unregistered under a copy", start);
        counters[UNREGISTRATIONS]++;
        error = cudaSuccess;
    } else
        violation("%p is unregistered, which was not registered", start);
    pthread_mutex_unlock(&lock);
    return error;
}

/* Of unmapping.c. */
void software_cuda_unmapped(void *start, size_t size, const char *how)
{
    if (is_forked() || has_failed())
        return;
    pthread_mutex_lock(&lock);
    for (size_t k = 0; k < count; k++)
        if (ranges[k].kind == REGISTERED && overlap((uintptr_t)start, size, ranges[k].start, ranges[k].size))
            violation("%s of %p, which is registered", how, start);
    if (is_under_way(start, size))
        violation("%s of %p under a copy", how, start);
    pthread_mutex_unlock(&lock);
}

cudaError_t cudaHostRegister(void *start, size_t size, unsigned flags)
{
    BLOCKING("cudaHostRegister");
    return failed(lock_pages(start, size, flags));
}

cudaError_t cudaHostUnregister(void *start)
{
    BLOCKING("cudaHostUnregister");
    return failed(unlock_pages(start));
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *address)
{
    BEGIN("cudaPointerGetAttributes");
    pthread_mutex_lock(&lock);
    struct range *range = range_at(address);
    memset(found, 0, sizeof *found);
    found->type = !range ? cudaMemoryTypeUnregistered
                         : range->kind == OF_DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    found->device = range ? range->device : cudaInvalidDeviceId;
    found->devicePointer = range ? (void *)address : NULL;
    found->hostPointer = range && range->kind == OF_DEVICE ? NULL : (void *)address;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* For tests: how much is registered, and how many copies are under way. */
long software_cuda_registered(void)
{
    pthread_mutex_lock(&lock);
    long found = registered();
    pthread_mutex_unlock(&lock);
    return found;
}

long software_cuda_under_way(void)
{
    long found = 0;
    pthread_mutex_lock(&lock);
    for (struct operation *copy = under_way; copy; copy = copy->after)
        found++;
    pthread_mutex_unlock(&lock);
    return found;
}
