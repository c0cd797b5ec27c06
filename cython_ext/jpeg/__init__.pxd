# The JPEG decoder, which is in C.
