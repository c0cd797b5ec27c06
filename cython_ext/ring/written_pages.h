/* What Linux says of the pages of a private mapping that were written: NOTE [ Private view ] in private_view.pxd.
 *
 * The headers of an older kernel know neither, so the constants are here: <linux/userfaultfd.h>, <linux/fs.h>. */
#pragma once
#include <fcntl.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct { uint64_t api, features, ioctls; } written_api;
typedef struct { uint64_t start, bytes, mode, ioctls; } written_register;
typedef struct { uint64_t start, bytes, mode; } written_protect;
typedef struct { uint64_t start, end, categories; } written_range;
typedef struct {
    uint64_t size, flags, start, end, walk_end, ranges, room, most, inverted, mask, any_of, returned;
} written_scan;

_Static_assert(sizeof(written_scan) == 96, "struct pm_scan_arg");

#define WRITTEN_USER_MODE_ONLY 1
#define WRITTEN_API 0xAA
#define WRITTEN_WP (1ull << 0)           /* UFFD_FEATURE_PAGEFAULT_FLAG_WP */
#define WRITTEN_OF_FILES (1ull << 12)    /* UFFD_FEATURE_WP_HUGETLBFS_SHMEM */
#define WRITTEN_UNPOPULATED (1ull << 13) /* UFFD_FEATURE_WP_UNPOPULATED */
#define WRITTEN_ASYNC (1ull << 15)       /* UFFD_FEATURE_WP_ASYNC */
#define WRITTEN_IS_WRITTEN (1ull << 1)   /* PAGE_IS_WRITTEN */

enum { WRITTEN_MOST = 64 }; /* ranges that one scan returns */

/* How many page faults this process has had, in all its threads; 0: this kernel does not say. */
static inline uint64_t page_faults(void)
{
    struct rusage used;
    if (getrusage(RUSAGE_SELF, &used)) return 0; /* a filter of system calls refuses it */
    return (uint64_t)used.ru_minflt + (uint64_t)used.ru_majflt;
}

/* A userfaultfd that lets the kernel itself note first writes to these bytes; -1: this kernel has none, or refuses. */
static inline int written_watch(char *at, uint64_t bytes)
{
    written_api api = {WRITTEN_API, WRITTEN_WP | WRITTEN_OF_FILES | WRITTEN_UNPOPULATED | WRITTEN_ASYNC, 0};
    written_register whole = {(uint64_t)at, bytes, 2 /* UFFDIO_REGISTER_MODE_WP */, 0};
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | WRITTEN_USER_MODE_ONLY);
    if (fd < 0) return -1;
    if (ioctl(fd, _IOWR(0xAA, 0x3F, written_api), &api) || ioctl(fd, _IOWR(0xAA, 0x00, written_register), &whole)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* From now on the next write to each of these pages is noted. */
static inline int written_forget(int fd, char *at, uint64_t bytes)
{
    written_protect range = {(uint64_t)at, bytes, 1 /* UFFDIO_WRITEPROTECT_MODE_WP */};
    return ioctl(fd, _IOWR(0xAA, 0x06, written_protect), &range);
}

/* Drop the pages of this range that were written since written_forget(), and watch them again; -1: it failed. */
static inline int written_drop(int fd, int pagemap, char *at, uint64_t bytes)
{
    written_range found[WRITTEN_MOST];
    written_scan scan = {sizeof(scan), 0, (uint64_t)at, (uint64_t)at + bytes, 0, (uint64_t)found, WRITTEN_MOST, 0,
                         0, WRITTEN_IS_WRITTEN, 0, WRITTEN_IS_WRITTEN};
    int k, count;
    do {
        count = ioctl(pagemap, _IOWR('f', 16, written_scan), &scan);
        if (count < 0) return -1;
        for (k = 0; k < count; k++) {
            char *from = (char *)found[k].start;
            uint64_t size = found[k].end - found[k].start;
            if (madvise(from, size, MADV_DONTNEED) || written_forget(fd, from, size)) return -1;
        }
        scan.start = scan.walk_end;
    } while (scan.walk_end < scan.end);
    return 0;
}

/* Drop the pages of this range that are this process's own copies, by /proc/self/pagemap; -1: it failed. */
static inline int written_drop_own(int pagemap, char *at, uint64_t bytes, uint64_t page)
{
    uint64_t entry[512], done = 0, pages = bytes / page;
    while (done < pages) {
        uint64_t count = pages - done < 512 ? pages - done : 512, k, from;
        if (pread(pagemap, entry, count * 8, (off_t)(((uint64_t)at / page + done) * 8)) != (ssize_t)(count * 8)) return -1;
        for (k = 0; k < count; k++) {
            for (from = k; k < count && entry[k] >> 62 && !(entry[k] >> 61 & 1); k++) {} /* present or swapped, no file's */
            if (k > from && madvise(at + (done + from) * page, (k - from) * page, MADV_DONTNEED)) return -1;
        }
        done += count;
    }
    return 0;
}
