# cython: language_level=3
"""CUDA's driver, called directly: which streams are current, and which batches no copy to a device reads any more."""

include "device/cuda_driver.pxi"
include "device/current.pxi"
include "device/reclaim.pxi"
