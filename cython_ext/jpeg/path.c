/* Chooses the path that decodes on this processor: the fastest of AVX-512, AVX2, NEON and plain C, or the one that is
 * asked for by name. */
#include "jpeg.h"

#include <string.h>

static const jpeg_path *const paths[] = {
#if defined(__x86_64__)
    &jpeg_avx512,
    &jpeg_avx2,
#elif defined(__aarch64__)
    &jpeg_neon,
#endif
    &jpeg_plain,
};

const jpeg_path *jpeg_choose(const char *name)
{
    for (size_t k = 0; k < sizeof paths / sizeof *paths; k++)
        if (paths[k]->can_run() && (!name || !strcmp(name, paths[k]->name))) return paths[k];
    return NULL;
}
