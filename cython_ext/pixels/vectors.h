/* Eight 32-bit numbers, or four doubles, at once: in the compiler's own vectors, which every processor has.
 *
 * Where the compiler does something badly, there is a function here in plain C, and another one in vectors_avx2.h.  The
 * kernels are written once, in terms of these. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wpsabi" /* nothing here is called from another file */

typedef uint32_t words __attribute__((vector_size(32)));
typedef int32_t ints __attribute__((vector_size(32)));
typedef float floats __attribute__((vector_size(32)));
typedef double doubles __attribute__((vector_size(32)));
typedef int64_t longs __attribute__((vector_size(32)));

static inline words load_words(const void *at)
{
    words w;
    memcpy(&w, at, sizeof w);
    return w;
}

static inline void store_words(void *at, words w) { memcpy(at, &w, sizeof w); }

static inline doubles load_doubles(const double *at)
{
    doubles d;
    memcpy(&d, at, sizeof d);
    return d;
}

static inline void store_doubles(double *at, doubles d) { memcpy(at, &d, sizeof d); }

static inline ints channel(words pixels, int which) { return (ints)(pixels >> (8 * which) & 255); }

static inline floats to_floats(ints i) { return __builtin_convertvector(i, floats); }
static inline ints to_ints(floats f) { return __builtin_convertvector(f, ints); } /* towards 0 */

static inline ints choose(ints mask, ints yes, ints no) { return (mask & yes) | (~mask & no); }

static inline floats choose_floats(ints mask, floats yes, floats no)
{
    return (floats)choose(mask, (ints)yes, (ints)no);
}

static inline doubles every(double d) { return (doubles){d, d, d, d}; }

static inline floats everywhere(float f) { return (floats){f, f, f, f, f, f, f, f}; }

#if !defined(HAS_VECTORS)
static inline ints smaller(ints a, ints b) { return choose(a < b, a, b); }
static inline ints larger(ints a, ints b) { return choose(a > b, a, b); }

/* To 0..255, NaN to 0. */
static inline floats clamped(floats f)
{
    floats low = choose_floats(f > 0.0f, f, everywhere(0.0f));
    return choose_floats(low < 255.0f, low, everywhere(255.0f));
}

static inline doubles clamped_doubles(doubles d)
{
    longs above = d > 0.0;
    doubles low = (doubles)(above & (longs)d);
    longs below = low < 255.0;
    return (doubles)((below & (longs)low) | (~below & (longs)every(255.0)));
}

/* Rounds down to integers, for -1 to 65535. */
static inline doubles floored(doubles d)
{
    doubles whole = {(double)(int)d[0], (double)(int)d[1], (double)(int)d[2], (double)(int)d[3]};
    return whole - (doubles)((d < whole) & (longs)every(1.0));
}

static inline void store_as_ints(int32_t *at, doubles d)
{
    for (int k = 0; k < 4; k++) at[k] = (int32_t)d[k];
}

static inline void widen(floats f, doubles *low, doubles *high)
{
    *low = (doubles){f[0], f[1], f[2], f[3]};
    *high = (doubles){f[4], f[5], f[6], f[7]};
}

static inline floats narrow(doubles low, doubles high)
{
    return (floats){(float)low[0],  (float)low[1],  (float)low[2],  (float)low[3],
                    (float)high[0], (float)high[1], (float)high[2], (float)high[3]};
}

/* Both towards 0. */
static inline ints narrow_to_ints(doubles low, doubles high)
{
    return (ints){(int)low[0],  (int)low[1],  (int)low[2],  (int)low[3],
                  (int)high[0], (int)high[1], (int)high[2], (int)high[3]};
}

static inline ints luma(words pixels)
{
    words sum = (pixels & 255) * 19595 + (pixels >> 8 & 255) * 38470 + (pixels >> 16 & 255) * 7471 + 0x8000;
    return (ints)(sum >> 16);
}

/* Eight bytes, as eight numbers. */
static inline words load_bytes(const uint8_t *at)
{
    return (words){at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]};
}

/* Sixteen numbers under 256 as bytes. */
static inline void store_bytes(uint8_t *at, words low, words high)
{
    for (int k = 0; k < 8; k++) at[k] = (uint8_t)low[k], at[8 + k] = (uint8_t)high[k];
}

/* The four bytes of a pixel, and back, where none is beyond 0..255. */
static inline doubles load_pixel(const uint8_t *at) { return (doubles){at[0], at[1], at[2], at[3]}; }

static inline void store_pixel(uint8_t *at, doubles d)
{
    for (int k = 0; k < 4; k++) at[k] = (uint8_t)(int)d[k];
}

/* Each pixel from three values, in the order that hue.h says for its sector. */
static inline words arranged(ints sector, ints value, ints between, ints low)
{
    ints red = choose((sector == 0) | (sector == 5), value, choose((sector == 1) | (sector == 4), between, low));
    ints green = choose((sector == 1) | (sector == 2), value, choose((sector == 0) | (sector == 3), between, low));
    ints blue = choose((sector == 3) | (sector == 4), value, choose((sector == 2) | (sector == 5), between, low));
    return (words)(red | green << 8 | blue << 16);
}
#endif
