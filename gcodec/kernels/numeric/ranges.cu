// Twins of the kernel of ranges.py: the least and the largest value of each bucket.
//
// Values are compared as keys made of their bits, in which −0 is below +0 and NaN lies beyond the
// infinities.
#include "kernels/numeric/floats.cuh"
#include "runtime/report.cuh"

__device__ __forceinline__ i32 key_of(i32 bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }

// A warp's part of a bucket, elements first to last - 1, to keys of the bucket.
__device__ __forceinline__ void range_of(
    const i32* bits, i64 first, i64 last, i64 step, i32* low, i32* high) {
    for (i64 i = first; i < last; i += step) {
        i32 key = key_of(bits[i]);
        *low = min(*low, key);
        *high = max(*high, key);
    }
    for (int width = 16; width >= 1; width /= 2) {
        *low = min(*low, __shfl_down_sync(0xFFFFFFFFu, *low, width));
        *high = max(*high, __shfl_down_sync(0xFFFFFFFFu, *high, width));
    }
}

// keys: low and high of each bucket, 0x7FFFFFFF and −0x80000000 before.
extern "C" __global__ void no_ranges(i64 count, i32* keys) {
    for (i64 b = GCODEC_FIRST; b < count; b += GCODEC_STEP) {
        keys[2 * b] = 0x7FFFFFFF;
        keys[2 * b + 1] = -0x7FFFFFFF - 1;
    }
}

// Small buckets: a warp does one.
extern "C" __global__ void ranges_small(
    const i32* bits, i64 n, i64 bucket, i64 count, i32* keys) {
    i64 b = GCODEC_FIRST / 32, first = b * bucket;
    if (b >= count) return;  // of all lanes of the warp
    i32 low = 0x7FFFFFFF, high = -0x7FFFFFFF - 1;
    range_of(bits, first + threadIdx.x % 32, min(first + bucket, n), 32, &low, &high);
    if (threadIdx.x % 32 == 0) {
        keys[2 * b] = low;
        keys[2 * b + 1] = high;
    }
}

// Large buckets: a block does a part of one, of `part` elements.
extern "C" __global__ void ranges_large(
    const i32* bits, i64 n, i64 bucket, i64 parts, i64 part, i32* keys) {
    i64 b = blockIdx.x / parts, within = blockIdx.x % parts * part;
    i64 end = min(b * bucket + min(within + part, bucket), n);
    i32 low = 0x7FFFFFFF, high = -0x7FFFFFFF - 1;
    range_of(bits, b * bucket + within + threadIdx.x, end, blockDim.x, &low, &high);
    if (threadIdx.x % 32 == 0) {  // there are as many blocks as parts of buckets
        atomicMin(&keys[2 * b], low);
        atomicMax(&keys[2 * b + 1], high);
    }
}

// Keys to values, a zero to +0; reports those that are not finite.
extern "C" __global__ void range_values(const i32* keys, i64 count, u32* found, u64* wrong) {
    for (i64 k = GCODEC_FIRST; k < count; k += GCODEC_STEP) {
        u32 bits = (u32)key_of(keys[k]);
        if (!is_finite(bits)) report(wrong, k);
        found[k] = bits == SIGN_BIT ? 0 : bits;
    }
}

// Numbers to and from their bytes in the payload, the most significant first.
extern "C" __global__ void swapped(const u32* from, i64 count, u32* to) {
    for (i64 k = GCODEC_FIRST; k < count; k += GCODEC_STEP)
        to[k] = __byte_perm(from[k], 0, 0x0123);
}

// Reports the first range that is none.
extern "C" __global__ void check_ranges(const u32* found, i64 count, u64* wrong) {
    for (i64 b = GCODEC_FIRST; b < count; b += GCODEC_STEP) {
        u32 low = found[2 * b], high = found[2 * b + 1];
        bool fine = is_finite(low) && is_finite(high) && less_equal(low, high);
        if (!fine || low == SIGN_BIT || high == SIGN_BIT) report(wrong, b);
    }
}
