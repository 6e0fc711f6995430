// Twin of block_scales.py: one scale, times a factor for each block of elements that a byte tells.
#include "kernels/quantize/minifloat_error.cuh"

static const i32 FIRST = (127 - 28) * 8;  // of byte 0: exponent and three bits of mantissa
static const i32 BELOW = 20;              // bits of float32 below these
static const i32 MORE = 1, TRIED = 6;     // what is tried begins so far above what is needed
static const i32 LANES = 16;
static const u32 EVERY = 0xFFFFFFFFu;

// The scale by which a largest magnitude becomes about the last level. One thread.
extern "C" __global__ void largest_scale(const u32* bits, u32 top, u32* out) {
    u32 found = divide_bits(*bits, top);
    if (multiply_bits(found, top) >= INFINITY_BITS) --found;  // the next float32 below
    *out = *bits && !found ? 1 : found;
}

extern "C" __global__ void __launch_bounds__(256)
    scales_of(const u32* __restrict__ scale, const u8* __restrict__ factors, i64 count,
              u32* __restrict__ out) {
    for (i64 k = GCODEC_FIRST; k < count; k += GCODEC_STEP)
        out[k] = multiply_bits(*scale, (u32)(factors[k] + FIRST) << BELOW);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    choose(const u32* __restrict__ x, i64 n, i64 length, const u32* __restrict__ number, u32 top,
           u32 mantissa, u8* __restrict__ factors) {
    // Whole warps; factors: ceil(n / length). A warp chooses for a block of elements; each half of
    // it tries every other factor.
    u32 scale = *number;
    i32 half = (i32)(threadIdx.x & 31) / LANES, lane = (i32)threadIdx.x & (LANES - 1);
    for (i64 k = GCODEC_FIRST >> 5; k * length < n; k += GCODEC_STEP >> 5) {
        i64 start = k * length, stop = min(start + length, n);
        i64 whole = stop - (stop - start) % LANES;
        u32 largest = 0;
        for (i64 i = start + (threadIdx.x & 31); i < stop; i += 32)
            largest = max(largest, x[i] & MAGNITUDE);
        for (int step = 16; step; step /= 2)
            largest = max(largest, __shfl_xor_sync(EVERY, largest, step));
        i32 needed = (i32)(divide_bits(largest, multiply_bits(scale, top)) >> BELOW);
        f64 best = 0.0;
        i32 chosen = -1;
        for (i32 pair = 0; pair < TRIED; pair += 2) {  // the same for all lanes
            i32 factor = min(max(needed - FIRST + MORE - pair - half, 0), 255);
            u32 delta = multiply_bits(scale, (u32)(factor + FIRST) << BELOW);
            bool fits = largest && delta && multiply_bits(delta, top) < INFINITY_BITS;
            f64 sum = 0.0, rest = 0.0;
            if (fits) {
                for (i64 i = start + lane; i < whole; i += LANES)
                    sum = __dadd_rn(sum, square_of(x[i] & MAGNITUDE, delta, top, mantissa));
                for (i64 i = whole; i < stop; ++i)
                    rest = __dadd_rn(rest, square_of(x[i] & MAGNITUDE, delta, top, mantissa));
            }
            for (int width = LANES / 2; width; width /= 2)
                sum = __dadd_rn(sum, __shfl_down_sync(EVERY, sum, width, LANES));
            f64 error = __dadd_rn(rest, sum);  // as it is in the first lane of each half
            for (i32 h = 0; h < 2; ++h) {
                f64 other = __shfl_sync(EVERY, error, h * LANES);
                i32 with = __shfl_sync(EVERY, fits ? factor : -1, h * LANES);
                if (with >= 0 && (chosen < 0 || other < best)) {
                    best = other;
                    chosen = with;
                }
            }
        }
        if ((threadIdx.x & 31) == 0) factors[k] = (u8)max(chosen, 0);
    }
}

// In the next ones: x, values, out: n elements; scales: one for each block of `length` up to the
// last element, which is that of number first + n - 1.

extern "C" __global__ void __launch_bounds__(256)
    divide(const u32* __restrict__ x, i64 n, i64 first, i64 length, const u32* __restrict__ scales,
           u32* __restrict__ out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u32 scale = scales[(first + i) / length];
        bool positive = scale - 1 < INFINITY_BITS;  // infinity too
        u32 bits = divide_bits(x[i], positive ? scale : INFINITY_BITS);
        out[i] = (bits & SIGN_BIT) | min(bits & MAGNITUDE, INFINITY_BITS - 1);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    multiply(const u32* values, i64 n, i64 first, i64 length, const u32* __restrict__ scales,
             u32* out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP)
        out[i] = multiply_bits(values[i], scales[(first + i) / length]);
}

extern "C" __global__ void __launch_bounds__(256)
    add_multiplied(const u32* __restrict__ values, i64 n, i64 first, i64 length,
                   const u32* __restrict__ scales, u32 times, u32* __restrict__ out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u32 product = multiply_bits(values[i], scales[(first + i) / length]);
        out[i] = add_bits(out[i], multiply_bits(times, product));
    }
}
