/* The path of 64-bit ARM processors: all of them have NEON, which the compiler's vectors become there. */
#include "path.h"

#if defined(__aarch64__)
#include "vectors.h"

#include "look_up_neon.h"
#include "smooth.h"
#include "turn.h"

#include "blend.h"
#include "box.h"
#include "convolve.h"
#include "hue.h"
#include "luma.h"
#include "numbers.h"
#include "numbers_fused.h"
#include "warp.h"

static int can_run(void) { return 1; }
static int can_add_fused(void) { return 1; }

const pixels_path pixels_neon = {
    .name = "neon", .can_run = can_run, .look_up = look_up,
    .grayscale = grayscale, .saturate = saturate, .sum_of_luma = sum_of_luma, .blend = blend, .hue = hue,
    .sharpen_row = sharpen_row, .box_down = box_down, .convolve_row = convolve_row, .turn = turn,
    .affine_row = affine_row, .perspective_row = perspective_row,
    .split_bytes = split_bytes, .split_words = split_words, .numbers = numbers,
    .numbers_fused = numbers_fused, .can_add_fused = can_add_fused,
};
#endif
