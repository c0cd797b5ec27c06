/* How many forks lie between this process and the one that loaded this module.  A fork counts itself in its child, so
 * asking costs one load, where getpid() is a system call. */
#ifndef SHMLOADER_FORKS_H
#define SHMLOADER_FORKS_H
#include <pthread.h>

static volatile unsigned forks_so_far;

static void forks_count(void) { forks_so_far++; }

static int forks_watch(void) { return pthread_atfork(NULL, NULL, forks_count); }
#endif
