/* A build of the ring whose workers die at a chosen step, once for each token file; see test_kill_at_each_step.py.
 *
 * RING_STEP_TO_DIE is "step hit trainer token": the step, at which pass over it (from 1, in each process), the pid that
 * must not die, and the path of the tokens: <token>0, <token>1 ... of which each death takes one away. */
#pragma once
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    AFTER_CLAIM, WHILE_FILLING, AFTER_OVERFLOW, WHILE_REMEMBERING, BEFORE_PUBLISH, AFTER_PUBLISH, WOKE, AFTER_BELL,
    AFTER_ANNOUNCE
};

static void ring_step(int step)
{
    static int hits;
    int at, hit, trainer;
    char token[512], path[520];
    const char *wanted = getenv("RING_STEP_TO_DIE"); /* asked each time: the next case has other workers */
    if (wanted == NULL || sscanf(wanted, "%d %d %d %511s", &at, &hit, &trainer, token) != 4) return;
    if (step != at || getpid() == trainer || ++hits != hit) return;
    for (int k = 0; k < 9; k++) {
        snprintf(path, sizeof path, "%s%d", token, k);
        if (unlink(path) == 0) raise(SIGKILL);
    }
}
#define RING_STEP(step) ring_step(step)
