/* From RGB to HSV, the hue turned, and back, as Pillow converts: every rounding is where it rounds.
 *
 * Pillow divides three differences by max - min.  The one of the largest channel gives 0 and the one of the smallest 1,
 * so that one division is left, of the middle channel, and the hue in sixths of a turn is +-1, 3 or 5 plus or minus that.
 * All that fits into a float is exact in one; the rest is in double, as there.  That a multiplication by 1/6 and divisions
 * in float do where Pillow divides in double is shown by trying all colours: tests/test_pixels_hue.py. */
#pragma once
#include "vectors.h"

static inline words turned(words pixels, int shift)
{
    ints red = channel(pixels, 0), green = channel(pixels, 1), blue = channel(pixels, 2);
    ints most = larger(red, larger(green, blue)), least = smaller(red, smaller(green, blue));
    ints middle = red + green + blue - most - least, spread = most - least;
    ints one = {1, 1, 1, 1, 1, 1, 1, 1};

    /* hue: in sixths of a turn, then 0 to 1, then a byte */
    floats part = to_floats(most - middle) / to_floats(larger(spread, one));
    ints red_is_most = red == most, green_is_most = green == most, blue_is_least = blue == least;
    ints rises = choose(red_is_most, ~blue_is_least, choose(green_is_most, blue_is_least, red == least));
    floats if_red = choose_floats(blue_is_least, everywhere(1.0f), everywhere(-1.0f));
    floats if_green = choose_floats(blue_is_least, everywhere(1.0f), everywhere(3.0f));
    floats if_blue = choose_floats(red == least, everywhere(3.0f), everywhere(5.0f));
    floats start = choose_floats(red_is_most, if_red, choose_floats(green_is_most, if_green, if_blue));
    floats sixths = start + choose_floats(rises, part, -part);
    doubles low, high;
    widen(sixths, &low, &high);
    low = low * (1.0 / 6.0) + 1.0, high = high * (1.0 / 6.0) + 1.0;
    low -= (doubles)((low >= 1.0) & (longs)every(1.0)), high -= (doubles)((high >= 1.0) & (longs)every(1.0));
    widen(narrow(low, high), &low, &high);
    ints hue = (narrow_to_ints(low * 255.0, high * 255.0) + shift) & 255;

    widen(to_floats(spread) / to_floats(larger(most, one)), &low, &high);
    ints saturation = narrow_to_ints(low * 255.0, high * 255.0);

    /* back: which sixth, how far into it, and three values */
    ints sector = hue * 197382 >> 23; /* hue * 6 / 255 */
    floats into = to_floats(hue * 6 - sector * 255) / 255.0f;
    floats colour = to_floats(saturation) / 255.0f, value = to_floats(most);
    ints lowest = to_ints(value - value * colour + 0.5f);
    doubles into_low, into_high, colour_low, colour_high, value_low, value_high, falls_low, falls_high;
    widen(into, &into_low, &into_high);
    widen(colour, &colour_low, &colour_high);
    widen(value, &value_low, &value_high);
    widen(colour * into, &falls_low, &falls_high);
    ints falling = narrow_to_ints(value_low * (1.0 - falls_low) + 0.5, value_high * (1.0 - falls_high) + 0.5);
    ints rising = narrow_to_ints(value_low * (1.0 - colour_low * (1.0 - into_low)) + 0.5,
                                 value_high * (1.0 - colour_high * (1.0 - into_high)) + 0.5);
    ints between = choose((sector & 1) == 1, falling, rising);
    return arranged(sector & (sector < 6), most, between, lowest);
}

static void hue(uint8_t *at, size_t n, int shift)
{
    for (size_t k = 0; k < n; k += 8) store_words(at + 4 * k, turned(load_words(at + 4 * k), shift));
}
