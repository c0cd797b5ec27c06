/* The paths of x86 processors with AVX2 (2013 and later), and of those that have AVX-512 too. */
#include "path.h"

#if defined(__x86_64__)
#include "avx2.h"

#include "lines_avx2.h"

static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"); }

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#include "avx512.h"

#include "lines_avx512.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const resize_path resize_avx2 = {
    .name = "avx2", .can_run = has_avx2, .blend = blend_avx2, .turn = turn_avx2, .interleave = interleave_avx2,
    .split = split_avx2,
};

const resize_path resize_avx512 = {
    .name = "avx512", .can_run = has_avx512, .blend = blend_avx512, .turn = turn_avx2, .interleave = interleave_avx2,
    .split = split_avx2,
};
#endif
