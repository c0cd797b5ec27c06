/* The path of 64-bit ARM processors: all of them have NEON. */
#include "path.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include "idct_neon.h"
#include "fill.h"
#include "unstuff.h"
#define idct idct_neon
#include "decode_scan.h"

#include "colour_neon.h"
#include "deep_neon.h"
#include "upsample_neon.h"

static int can_run(void) { return 1; }

const jpeg_path jpeg_neon = {
    .name = "neon", .can_run = can_run, .place = place, .decode_scan = decode_scan,
    .upsample_both = upsample_both_neon, .upsample_across = upsample_across_neon,
    .upsample_along = upsample_along_neon,
    .colour = colour_neon, .colour_deep = colour_deep_neon,
    .blend_deep = blend_deep_neon, .blend_words = blend_words_neon,
    .turn_words = turn_words_neon,
};
#endif
