/* The format of decoded pictures in a cache: planes of Y, Cb and Cr before chroma is upsampled, which are smaller than
 * RGB and faster than coefficients.  Checks the shape of planes before they are read.
 *
 * NOTE [ Kept planes ]
 *
 * A picture whose planes are kept need not be decoded again.  A plane has the samples of one component (Y, Cb or Cr) as
 * the decoder gives them, before chroma is upsampled.  We keep planes and not RGB, because they have half as many
 * samples, and because every way of making a crop (exact or fast, any filter, any path) begins with them.  So a crop of
 * kept planes equals the crop of the file bit for bit.
 *
 *     1. The planes follow one another.  A plane has its columns from left to right, without gaps.  A column of chroma
 *        begins with a copy of its first sample and ends with a copy of its last, because upsampling reads one sample
 *        beyond each end.
 *     2. SPARE bytes follow the last plane, because vectors read whole LINEs.  What a vector reads beyond its column is
 *        the next column or these bytes, and does not reach the result.
 *     3. Planes come from a file or from other processes, so their bytes may be anything.  Reading them is safe
 *        nevertheless: the function that opens planes checks that there are as many bytes as the shape needs.
 *
 * Coefficients, as the entropy decoder gives them, would be smaller.  If two bytes are kept for each coefficient that
 * is not 0, a picture takes 280 KB instead of 522 KB (mean of 264 photographs of ImageNet).  But a crop from
 * coefficients takes about 300 us, a crop from planes 122, and a crop from the file 655.  So if all pictures fit,
 * planes are 2.4 times as fast as coefficients.  That is why planes are kept.  If memory is short, coefficients would
 * be a little better, because a KB of them saves more time: 1.27 us ((655 - 300) / 280) instead of 1.02
 * ((655 - 122) / 522). */
#include <string.h>

#include "decoder.h"

enum { SPARE = 2 * LINE };

/* The plane of one component. */
typedef struct {
    int width, height, edge; /* each column has `edge` further samples at each end */
} plane_size;

static plane_size size_of(const jpeg_shape *s, int k)
{
    int across = s->h[0] / s->h[k > 0], down = s->v[0] / s->v[k > 0];
    return (plane_size){(s->width + across - 1) / across, (s->height + down - 1) / down, k > 0};
}

static size_t stride_of(plane_size size) { return (size_t)(size.height + 2 * size.edge); }

static int is_factor(int factor) { return factor >= 1 && factor <= 4; }

size_t jpeg_planes_bytes(const jpeg_shape *s)
{
    if (!s->width || !s->height || (s->components != 1 && s->components != 3)) return 0;
    for (int k = 0; k < 2; k++)
        if (!is_factor(s->h[k]) || !is_factor(s->v[k]) || s->h[0] % s->h[k] || s->v[0] % s->v[k]) return 0;
    if (s->orientation > 8) return 0;
    size_t bytes = SPARE;
    for (int k = 0; k < s->components; k++) bytes += (size_t)size_of(s, k).width * stride_of(size_of(s, k));
    return bytes;
}

jpeg_shape jpeg_shape_of(const jpeg_decoder *d)
{
    const jpeg_header *h = &d->header;
    const jpeg_component *luma = &h->component[0], *chroma = &h->component[h->components - 1];
    return (jpeg_shape){.width = (uint16_t)h->width, .height = (uint16_t)h->height,
                        .components = (uint8_t)h->components, .orientation = (uint8_t)h->orientation,
                        .h = {luma->h, chroma->h}, .v = {luma->v, chroma->v}};
}

int jpeg_write_planes(jpeg_decoder *d, uint8_t *to)
{
    jpeg_shape shape = jpeg_shape_of(d);
    int status = jpeg_read_all(d);
    if (status != JPEG_OK) return status;
    for (int k = 0; k < shape.components; k++) {
        const jpeg_plane *p = &d->scan.planes[k];
        plane_size size = size_of(&shape, k);
        for (int x = 0; x < size.width; x++, to += stride_of(size))
            memcpy(to, p->samples + x * p->stride - size.edge, stride_of(size));
    }
    memset(to, 0, SPARE);
    return JPEG_OK;
}

int jpeg_open_planes(jpeg_decoder *d, const jpeg_shape *s, const uint8_t *planes)
{
    if (!jpeg_planes_bytes(s)) return 0;
    d->header = (jpeg_header){.width = s->width, .height = s->height, .components = s->components, .h = s->h[0],
                              .v = s->v[0], .orientation = s->orientation};
    for (int k = 0; k < s->components; k++) {
        jpeg_plane *p = &d->scan.planes[k];
        plane_size size = size_of(s, k);
        d->header.component[k] = (jpeg_component){.h = s->h[k > 0], .v = s->v[k > 0]};
        p->left = p->top = 0;
        p->right = (size.width + 7) / 8;
        p->bottom = (size.height + 7) / 8;
        p->stride = (ptrdiff_t)stride_of(size);
        p->samples = (uint8_t *)planes + size.edge; /* read-only: nothing is decoded while is_lent is set */
        planes += (size_t)size.width * stride_of(size);
    }
    d->is_whole = d->is_lent = 1;
    return 1;
}
