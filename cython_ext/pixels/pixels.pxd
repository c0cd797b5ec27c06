"""The C operations of pixels/, for pixels.pyx."""

from libc.stdint cimport uint8_t, uint32_t

cdef extern from "pixels/pixels.h" nogil:
    enum: PIXELS_OK, PIXELS_NO_WAY, NEAREST, BILINEAR, BICUBIC, PAD_CONSTANT, PAD_EDGE, PAD_REFLECT, PAD_SYMMETRIC
    ctypedef struct pixels_scale:
        float times, by, mean, deviation
    ctypedef struct pixels_path:
        const char *name
    ctypedef struct pixels_numbers:
        pass
    ctypedef struct pixels_picture:
        uint8_t *now
        int width, height, channels, is_pending
    ctypedef struct pixels_place:
        uint8_t *to
        Py_ssize_t channel, row, column
    ctypedef struct pixels_values:
        const uint8_t *values
        Py_ssize_t channel, row, column
    const pixels_path *pixels_choose(const char *name)
    pixels_picture *pixels_new(const pixels_path *path)
    void pixels_free(pixels_picture *picture)
    int pixels_start(pixels_picture *picture, int width, int height, int channels)
    void pixels_load(pixels_picture *picture, const uint8_t *data, Py_ssize_t row, Py_ssize_t column,
                     Py_ssize_t channel)
    int pixels_copy(pixels_picture *picture, const pixels_picture *other)
    void pixels_apply_pending(pixels_picture *picture)
    void pixels_look_up(pixels_picture *picture, const uint8_t (*tables)[256])
    void pixels_look_up_all(pixels_picture *picture, const uint8_t *table)
    void pixels_brightness(pixels_picture *picture, float factor)
    void pixels_contrast(pixels_picture *picture, float factor)
    void pixels_autocontrast(pixels_picture *picture)
    void pixels_equalize(pixels_picture *picture)
    void pixels_saturation(pixels_picture *picture, float factor)
    void pixels_hue(pixels_picture *picture, int shift)
    void pixels_grayscale(pixels_picture *picture, int channels)
    void pixels_permute(pixels_picture *picture, const int *order)
    int pixels_sharpness(pixels_picture *picture, float factor)
    void pixels_blend(pixels_picture *picture, pixels_picture *other, float alpha)
    int pixels_gaussian_blur(pixels_picture *picture, float across, float down)
    int pixels_convolve(pixels_picture *picture, const float *across, int taps_across, const float *down, int taps_down)
    int pixels_convolve_window(pixels_picture *picture, const float *weights, int across, int down)
    int pixels_affine(pixels_picture *picture, int width, int height, const double *matrix, int interpolation,
                      uint32_t fill)
    int pixels_perspective(pixels_picture *picture, int width, int height, const double *matrix, int interpolation,
                           uint32_t fill)
    int pixels_frame(pixels_picture *picture, int left, int top, int width, int height, int mode, uint32_t fill)
    int pixels_flip_left_right(pixels_picture *picture)
    int pixels_flip_top_bottom(pixels_picture *picture)
    int pixels_turn_quarters(pixels_picture *picture, int quarters)
    void pixels_fill_box(pixels_picture *picture, int left, int top, int width, int height, uint32_t colour)
    ctypedef enum resize_filter:
        RESIZE_FILTERS
    ctypedef struct resize_request:
        int canvas_width, canvas_height, left, top, is_mirrored
        uint8_t fill[3]
        int all_width, all_height, out_left, out_top, out_width, out_height
        resize_filter filter
        int may_go_down_first, is_flipped
    int pixels_resize(pixels_picture *picture, resize_request request)
    int pixels_write(pixels_picture *picture, pixels_place place, const void *tables, int item,
                     const pixels_scale *scales)
    void pixels_plan_numbers(pixels_numbers *plan, const pixels_path *path, const pixels_scale *scale)
    void pixels_calculate(const pixels_numbers *plan, const uint8_t *data, int n, float *to)
    void pixels_erase(pixels_place place, int channels, int width, int height, pixels_values values, int item)
