/* Times, counted by their size: sixteen buckets an octave, so a percentile of a microsecond or more is wrong by 3 % at
 * most, and one of less by 32 ns.
 *
 * What is added takes some nanoseconds and no memory, however many times there are.  Two histograms of one thing, the
 * earlier one taken from the later one, are the histogram of what came between.
 */
#pragma once
#include <stdint.h>

enum {
    HISTOGRAM_UNIT = 6,     /* the first buckets are of 64 ns each */
    HISTOGRAM_FINE = 4,     /* 16 buckets an octave above these */
    HISTOGRAM_BUCKETS = 512 /* up to 2^41 ns, 36 minutes; the last one has all that is longer */
};

typedef struct {
    uint64_t count, sum; /* sum: nanoseconds */
    uint64_t bucket[HISTOGRAM_BUCKETS];
} histogram;

static inline unsigned histogram_bucket(uint64_t nanoseconds)
{
    uint64_t units = nanoseconds >> HISTOGRAM_UNIT;
    if (units < 1u << HISTOGRAM_FINE) return (unsigned)units;
    unsigned octave = 63u - (unsigned)__builtin_clzll(units) - HISTOGRAM_FINE; /* 0: 16 to 31 units */
    uint64_t bucket = ((uint64_t)(octave + 1) << HISTOGRAM_FINE) + ((units >> octave) & ((1u << HISTOGRAM_FINE) - 1));
    return bucket < HISTOGRAM_BUCKETS ? (unsigned)bucket : HISTOGRAM_BUCKETS - 1;
}

/* Where a bucket begins, in nanoseconds. */
static inline uint64_t histogram_from(unsigned bucket)
{
    if (bucket < 2u << HISTOGRAM_FINE) return (uint64_t)bucket << HISTOGRAM_UNIT;
    unsigned octave = (bucket >> HISTOGRAM_FINE) - 1, fine = bucket & ((1u << HISTOGRAM_FINE) - 1);
    return ((1ull << HISTOGRAM_FINE) + fine) << (octave + HISTOGRAM_UNIT);
}

static inline void histogram_add(histogram *h, uint64_t nanoseconds)
{
    h->count++;
    h->sum += nanoseconds;
    h->bucket[histogram_bucket(nanoseconds)]++;
}

/* The middle of the bucket below which this share of them lies, in nanoseconds; 0 where there are none. */
static inline double histogram_percentile(const histogram *h, double share)
{
    double below = share * (double)h->count;
    uint64_t seen = 0;
    if (!h->count) return 0;
    for (unsigned k = 0; k < HISTOGRAM_BUCKETS; k++) {
        seen += h->bucket[k];
        if (h->bucket[k] && (double)seen >= below)
            return ((double)histogram_from(k) + (double)histogram_from(k + 1)) / 2;
    }
    return (double)histogram_from(HISTOGRAM_BUCKETS);
}
