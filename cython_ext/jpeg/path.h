/* The functions that have a version for each processor: in plain C, with AVX2, AVX-512 and NEON.  All agree bit for bit.
 *
 * Pictures lie on their side here: a plane holds the picture's columns one after the other.  The inverse transform
 * makes them like that at no cost, because its last step would be to turn them back.  Resizing across the picture comes
 * first, and is a weighted sum of whole columns.  Then the few columns that are left are turned upright, and resizing
 * down the picture is a weighted sum of whole rows.
 *
 * Functions may round all counts up to a multiple of LINE, because there is that much room after each input and output.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "scan.h"
#include "../resize/path.h"

typedef struct {
    const char *name;
    int (*can_run)(void);

    /* Where the coefficient of this vertical and horizontal frequency stands in a block. */
    int (*place)(int down, int across);
    /* The whole scan, as far as it is wanted: see scan.h. */
    int (*decode_scan)(jpeg_scan *);

    /* Chroma up to the size of luma (see upsample.h).  `n` counts samples of chroma. */
    void (*upsample_both)(const uint8_t *near, const uint8_t *far, int bias, uint8_t *to, int n);
    void (*upsample_across)(const uint8_t *near, const uint8_t *far, int bias, uint8_t *to, int n);
    void (*upsample_along)(const uint8_t *near, uint8_t *to, int n);
    /* Y, Cb, Cr to R, G, B (see colour.h), from bytes and from words with DEEP more bits. */
    void (*colour)(const uint8_t *const ycc[3], uint8_t *const rgb[3], int n);
    void (*colour_deep)(const int16_t *const ycc[3], uint8_t *const rgb[3], int n);
    /* Weighted sums of lines in one multiplication, of bytes and of words, and TURN lines of words that become rows, for
     * the fast way (see deep.h); ../resize/path.h has those that are Pillow's. */
    void (*blend_deep)(const uint8_t *const *lines, const resize_weight *weights, int taps, int16_t *to, int n);
    void (*blend_words)(const int16_t *const *lines, const resize_weight *weights, int taps, int16_t *to, int n);
    void (*turn_words)(const int16_t *lines, size_t pitch, int16_t *to, size_t stride, int n);
} jpeg_path;

extern const jpeg_path jpeg_plain;
#if defined(__x86_64__)
extern const jpeg_path jpeg_avx2, jpeg_avx512;
#elif defined(__aarch64__)
extern const jpeg_path jpeg_neon;
#endif
