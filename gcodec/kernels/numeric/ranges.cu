// Twin of ranges.py: the minimum and maximum of each bucket.
//
// Values are compared as keys from their bits. In this order, −0 is below +0, and NaN is beyond the
// infinities.
#include "kernels/numeric/floats.cuh"
#include "runtime/report.cuh"

__device__ __forceinline__ i32 key_of(i32 bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }

// The keys of the range of a warp's part of a bucket: elements from `first` to last - 1.
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

// Initializes the keys of each bucket: low to 0x7FFFFFFF, high to −0x80000000.
extern "C" __global__ void no_ranges(i64 count, i32* keys) {
    for (i64 b = GCODEC_FIRST; b < count; b += GCODEC_STEP) {
        keys[2 * b] = 0x7FFFFFFF;
        keys[2 * b + 1] = -0x7FFFFFFF - 1;
    }
}

// The ranges of small buckets. A warp processes a bucket.
extern "C" __global__ void ranges_small(
    const i32* bits, i64 n, i64 bucket, i64 count, i32* keys) {
    i64 b = GCODEC_FIRST / 32, first = b * bucket;
    if (b >= count) return;  // the same for all lanes of the warp
    i32 low = 0x7FFFFFFF, high = -0x7FFFFFFF - 1;
    range_of(bits, first + threadIdx.x % 32, min(first + bucket, n), 32, &low, &high);
    if (threadIdx.x % 32 == 0) {
        keys[2 * b] = low;
        keys[2 * b + 1] = high;
    }
}

// The ranges of large buckets. A block processes `part` elements of a bucket.
extern "C" __global__ void ranges_large(
    const i32* bits, i64 n, i64 bucket, i64 parts, i64 part, i32* keys) {
    i64 b = blockIdx.x / parts, within = blockIdx.x % parts * part;
    i64 end = min(b * bucket + min(within + part, bucket), n);
    i32 low = 0x7FFFFFFF, high = -0x7FFFFFFF - 1;
    range_of(bits, b * bucket + within + threadIdx.x, end, blockDim.x, &low, &high);
    if (threadIdx.x % 32 == 0) {  // one block for each part of each bucket
        atomicMin(&keys[2 * b], low);
        atomicMax(&keys[2 * b + 1], high);
    }
}

// Converts keys to values, a zero to +0; reports values that are not finite.
extern "C" __global__ void range_values(const i32* keys, i64 count, u32* values, u64* wrong) {
    for (i64 k = GCODEC_FIRST; k < count; k += GCODEC_STEP) {
        u32 bits = (u32)key_of(keys[k]);
        if (!is_finite(bits)) report(wrong, k);
        values[k] = bits == SIGN_BIT ? 0 : bits;
    }
}

// Reverses the bytes of words; in a payload, the most significant byte is first.
extern "C" __global__ void swapped(const u32* from, i64 count, u32* to) {
    for (i64 k = GCODEC_FIRST; k < count; k += GCODEC_STEP)
        to[k] = __byte_perm(from[k], 0, 0x0123);
}

// Reports the first invalid range.
extern "C" __global__ void check_ranges(const u32* ranges, i64 count, u64* wrong) {
    for (i64 b = GCODEC_FIRST; b < count; b += GCODEC_STEP) {
        u32 low = ranges[2 * b], high = ranges[2 * b + 1];
        bool valid = is_finite(low) && is_finite(high) && less_equal(low, high);
        if (!valid || low == SIGN_BIT || high == SIGN_BIT) report(wrong, b);
    }
}
