/* The paths of x86 processors with AVX2 (2013 and later), and of those that have AVX-512 too. */
#include "path.h"

#if defined(__x86_64__)
#include "../resize/avx2.h"

#include "idct_avx2.h"
#include "fill.h"
#include "unstuff_avx2.h"
#define idct idct_avx2
#define unstuff unstuff_avx2
#include "decode_scan.h"

#include "colour_avx2.h"
#include "deep_avx2.h"
#include "upsample_avx2.h"

static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"); }

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#include "../resize/avx512.h"

#include "colour_avx512.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#define WITH_AVX2 \
    .place = place_avx2, .decode_scan = decode_scan, \
    .upsample_both = upsample_both_avx2, .upsample_across = upsample_across_avx2, \
    .upsample_along = upsample_along_avx2, .colour_deep = colour_deep_avx2, \
    .blend_deep = blend_deep_avx2, .blend_words = blend_words_avx2, \
    .turn_words = turn_words_avx2

const jpeg_path jpeg_avx2 = {
    .name = "avx2", .can_run = has_avx2, WITH_AVX2, .colour = colour_avx2,
};

const jpeg_path jpeg_avx512 = {
    .name = "avx512", .can_run = has_avx512, WITH_AVX2, .colour = colour_avx512,
};
#endif
