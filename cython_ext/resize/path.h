/* The functions of a resize that have a version for each processor: in plain C, with AVX2, AVX-512 and NEON.  All agree
 * bit for bit.
 *
 * They work on lines, which are rows or columns of one channel.  Resizing in one direction is a weighted sum of whole
 * lines that lie in the other direction, and strips of lines are turned in between.  Functions may round all counts up
 * to a multiple of LINE, because there is that much room after each input and output. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "weights.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { LINE = 32, TURN = 16 };

typedef struct {
    const char *name;
    int (*can_run)(void);

    /* The weighted sum of an even number of lines, as Pillow's. */
    void (*blend)(const uint8_t *const *lines, const resize_weight *weights, int taps, uint8_t *to, int n);
    /* TURN lines of n bytes become n lines of TURN, `stride` bytes apart. */
    void (*turn)(const uint8_t *lines, size_t pitch, uint8_t *to, size_t stride, int n);
    /* Three lines to n pixels of four bytes.  The fourth stays as it is, and nothing beyond n pixels is touched. */
    void (*interleave)(const uint8_t *const rgb[3], uint8_t *to, int n);
    /* The reverse: n pixels to three lines. */
    void (*split)(const uint8_t *from, uint8_t *const rgb[3], int n);
} resize_path;

extern const resize_path resize_plain;
#if defined(__x86_64__)
extern const resize_path resize_avx2, resize_avx512;
#elif defined(__aarch64__)
extern const resize_path resize_neon;
#endif

/* The fastest path that this processor has, or the path of this name; NULL if the processor cannot run it. */
const resize_path *resize_choose(const char *name);
