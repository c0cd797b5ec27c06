# cython: language_level=3
"""What the parts of cuda.pyx declare."""

include "device/cuda_driver.pxd"
include "device/current.pxd"
