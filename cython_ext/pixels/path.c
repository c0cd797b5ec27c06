/* Chooses the path that changes pixels on this processor: the fastest of AVX2, NEON and plain C, or the one that is
 * asked for by name. */
#include "path.h"

#include <string.h>

static const pixels_path *const paths[] = {
#if defined(__x86_64__)
    &pixels_avx2,
#elif defined(__aarch64__)
    &pixels_neon,
#endif
    &pixels_plain,
};

const pixels_path *pixels_choose(const char *name)
{
    for (size_t k = 0; k < sizeof paths / sizeof *paths; k++)
        if (paths[k]->can_run() && (!name || !strcmp(name, paths[k]->name))) return paths[k];
    return NULL;
}
