# Operations on pictures, equal to Pillow's, which are in C.
