/* The atomics of one verb without their memory order; read before atomics.h.
 *
 * With -DWEAKEN='"ring_publish"' every atomic of that function is relaxed, all others keep what they say.  So a test can
 * take the order away from a verb whatever its text. */
#pragma once
#ifdef WEAKEN
#include <stdatomic.h>
#define WEAKENED (!__builtin_strcmp(__func__, WEAKEN))

#undef atomic_load_explicit
#define atomic_load_explicit(at, order) (WEAKENED ? __atomic_load_n(at, __ATOMIC_RELAXED) : __atomic_load_n(at, order))

#undef atomic_store_explicit
#define atomic_store_explicit(at, value, order) \
    (WEAKENED ? __atomic_store_n(at, value, __ATOMIC_RELAXED) : __atomic_store_n(at, value, order))

#undef atomic_compare_exchange_strong_explicit
#define atomic_compare_exchange_strong_explicit(at, want, value, order, failed) \
    (WEAKENED ? __atomic_compare_exchange_n(at, want, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) \
              : __atomic_compare_exchange_n(at, want, value, 0, order, failed))
#endif
