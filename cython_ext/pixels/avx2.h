/* All functions after this are compiled for processors with AVX2, until the end of path_avx2.c. */
#pragma once
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif
#include <immintrin.h>
