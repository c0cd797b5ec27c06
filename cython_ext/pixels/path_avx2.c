/* The path of x86 processors with AVX2 (2013 and later). */
#include "path.h"

#if defined(__x86_64__)
#include "avx2.h"

#include "vectors_avx2.h"

#include "look_up_avx2.h"
#include "smooth_avx2.h"
#include "turn_avx2.h"
#include "window_avx2.h"

#include "blend.h"
#include "box.h"
#include "convolve.h"
#include "hue.h"
#include "luma.h"
#include "numbers.h"
#include "numbers_fused.h"
#include "warp.h"

static int can_run(void) { return __builtin_cpu_supports("avx2"); }
static int can_add_fused(void) { return __builtin_cpu_supports("fma"); }

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const pixels_path pixels_avx2 = {
    .name = "avx2", .can_run = can_run, .look_up = look_up,
    .grayscale = grayscale, .saturate = saturate, .sum_of_luma = sum_of_luma, .blend = blend, .hue = hue,
    .sharpen_row = sharpen_row, .box_down = box_down, .convolve_row = convolve_row, .turn = turn,
    .window_floats = window_floats, .window_row = window_row,
    .affine_row = affine_row, .perspective_row = perspective_row,
    .split_bytes = split_bytes, .split_words = split_words, .numbers = numbers,
    .numbers_fused = numbers_fused, .can_add_fused = can_add_fused,
};
#endif
