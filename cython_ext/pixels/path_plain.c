/* The path of any processor, in plain C. */
#include "path.h"

#include "vectors.h"

#include "look_up.h"
#include "planes.h"
#include "smooth.h"
#include "turn.h"

#include "blend.h"
#include "box.h"
#include "convolve.h"
#include "hue.h"
#include "luma.h"
#include "numbers.h"
#include "warp.h"

static int can_run(void) { return 1; }

const pixels_path pixels_plain = {
    .name = "plain", .can_run = can_run, .look_up = look_up,
    .grayscale = grayscale, .saturate = saturate, .sum_of_luma = sum_of_luma, .blend = blend, .hue = hue,
    .sharpen_row = sharpen_row, .box_down = box_down, .convolve_row = convolve_row, .turn = turn,
    .affine_row = affine_row, .perspective_row = perspective_row,
    .split_bytes = split_bytes, .split_words = split_words, .numbers = numbers,
};
