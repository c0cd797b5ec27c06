/* The monotonic clock, which all processes of a machine share. */
#ifndef SHMLOADER_CLOCK_H
#define SHMLOADER_CLOCK_H
#include <stdint.h>
#include <time.h>

static inline uint64_t clock_now(void) /* nanoseconds */
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}
#endif
