/* What this process got of the machine's cores: the kernel's own accounts, in some microseconds. */
#pragma once
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Nanoseconds for which all its threads have run. */
static inline uint64_t cpu_time(void)
{
    struct timespec time;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time)) return 0;
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Nanoseconds for which its main thread was ready to run and had no core; 0 where the kernel does not say. */
static inline uint64_t cpu_delay(void)
{
    char text[96];
    char *rest;
    int fd = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t size = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (size <= 0) return 0;
    text[size] = 0;
    strtoull(text, &rest, 10);
    return strtoull(rest, NULL, 10);
}
