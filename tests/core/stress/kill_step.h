/* A build of the ring whose workers die at chosen steps, once for each token file; see test_kill_at_each_step.py.
 *
 * RING_STEP_TO_DIE is "trainer token step hit step hit ...": the pid that must not die, the path of the tokens, and for
 * each death, in their order, the step and at which pass over it (from 1, in each process).  The first death takes
 * <token>0 away, the next one <token>1, and so on. */
#pragma once
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    AFTER_CLAIM, WHILE_FILLING, AFTER_OVERFLOW, WHILE_REMEMBERING, BEFORE_PUBLISH, AFTER_PUBLISH, WOKE, AFTER_BELL,
    AFTER_ANNOUNCE, STEPS
};

static void ring_step(int step)
{
    static int hits[STEPS];
    int trainer, length, at, hit;
    char token[512], path[520];
    const char *wanted = getenv("RING_STEP_TO_DIE"); /* asked each time: the next case has other workers */
    if (wanted == NULL || sscanf(wanted, "%d %511s%n", &trainer, token, &length) != 2 || getpid() == trainer) return;
    hits[step]++;
    for (int k = 0; sscanf(wanted += length, "%d %d%n", &at, &hit, &length) == 2; k++) {
        snprintf(path, sizeof path, "%s%d", token, k);
        if (at == step && hit == hits[step] && unlink(path) == 0) raise(SIGKILL);
        if (access(path, F_OK) == 0) return; /* this one comes first */
    }
}
#define RING_STEP(step) ring_step(step)
