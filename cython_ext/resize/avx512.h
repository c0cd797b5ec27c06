/* Decides which processors use AVX-512: those on which it costs no clock rate (Ice Lake, Zen 4 and later).  All
 * functions that follow this are compiled for them; path_avx2.c ends it. */
#pragma once
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,lzcnt,avx512f,avx512bw,avx512vnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt,avx512f,avx512bw,avx512vnni")
#endif
#include <immintrin.h>

/* AVX-512 for the processors on which it costs no clock rate: Ice Lake, Zen 4 and later.  Only these have VBMI2 too. */
static int has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi2");
}

/* The bytes at k to k + 63 that belong to lines of n bytes: all, or one LINE of them. */
static inline __mmask64 bytes_at(int k, int n) { return n - k > LINE ? ~(__mmask64)0 : ((__mmask64)1 << LINE) - 1; }
