/* All functions that follow this are compiled for processors with AVX2 and BMI2; path_avx2.c ends it. */
#pragma once
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,lzcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt")
#endif
#include <immintrin.h>
