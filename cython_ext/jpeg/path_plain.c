/* The path of any processor, in plain C. */
#include "path.h"

#include "idct.h"
#include "fill.h"
#include "unstuff.h"
#include "decode_scan.h"

#include "colour.h"
#include "deep.h"
#include "upsample.h"

static int can_run(void) { return 1; }

const jpeg_path jpeg_plain = {
    .name = "plain", .can_run = can_run, .place = place, .decode_scan = decode_scan,
    .upsample_both = upsample_both, .upsample_across = upsample_across, .upsample_along = upsample_along,
    .colour = colour, .colour_deep = colour_deep,
    .blend_deep = blend_deep, .blend_words = blend_words,
    .turn_words = turn_words,
};
