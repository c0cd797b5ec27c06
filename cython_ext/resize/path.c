/* The paths of all processors but those with AVX (path_avx2.c), and the choice between them: the fastest, or the one that
 * is asked for by name. */
#include "path.h"

#include <string.h>

#include "lines.h"

static int can_run(void) { return 1; }

const resize_path resize_plain = {
    .name = "plain", .can_run = can_run, .blend = blend, .turn = turn, .interleave = interleave, .split = split,
};

#if defined(__aarch64__)
#include <arm_neon.h>

#include "lines_neon.h"

const resize_path resize_neon = {
    .name = "neon", .can_run = can_run, .blend = blend_neon, .turn = turn_neon, .interleave = interleave_neon,
    .split = split_neon,
};
#endif

static const resize_path *const paths[] = {
#if defined(__x86_64__)
    &resize_avx512,
    &resize_avx2,
#elif defined(__aarch64__)
    &resize_neon,
#endif
    &resize_plain,
};

const resize_path *resize_choose(const char *name)
{
    for (size_t k = 0; k < sizeof paths / sizeof *paths; k++)
        if (paths[k]->can_run() && (!name || !strcmp(name, paths[k]->name))) return paths[k];
    return NULL;
}
