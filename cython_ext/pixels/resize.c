/* Resizes a picture, or a canvas on which it lies: ../resize does. */
#include "pixels.h"

int pixels_resize(pixels_picture *picture, resize_request request)
{
    if (!picture->resizer) {
        const resize_path *path = resize_choose(picture->path->name);
        picture->resizer = resize_new(path ? path : &resize_plain);
        if (!picture->resizer) return PIXELS_NO_MEMORY;
    }
    int status = pixels_make_room(picture, request.out_width, request.out_height);
    if (status != PIXELS_OK) return status;
    pixels_apply_pending(picture);
    request.from = picture->now, request.row = 4 * (ptrdiff_t)picture->width;
    request.width = picture->width, request.height = picture->height, request.channels = picture->channels;
    request.to = picture->spare, request.to_row = 4 * (ptrdiff_t)request.out_width;
    if (!resize_pixels(picture->resizer, &request)) return PIXELS_NO_MEMORY;
    pixels_exchange(picture, request.out_width, request.out_height);
    return PIXELS_OK;
}
