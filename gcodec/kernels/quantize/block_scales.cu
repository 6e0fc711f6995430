// One scale, times a factor for each block of elements, which a byte stores; see block_scales.py.
#include "kernels/quantize/minifloat_error.cuh"

static const i32 FIRST = (127 - 28) * 8;  // exponent and three bits of mantissa of byte 0
static const i32 BELOW = 20;              // lower bits of float32
static const i32 MORE = 1, TRIED = 6;     // candidates; the first exceeds the largest magnitude's
static const i32 LANES = 16;
static const u32 EVERY_LANE = 0xFFFFFFFFu;

// The scale by which a largest magnitude becomes about the last level. One thread.
extern "C" __global__ void largest_scale(const u32* bits, u32 top, u32* out) {
    u32 scale = divide_bits(*bits, top);
    if (multiply_bits(scale, top) >= INFINITY_BITS) --scale;  // the next float32 below
    *out = *bits && !scale ? 1 : scale;
}

extern "C" __global__ void __launch_bounds__(256)
    scales_of(const u32* __restrict__ scale, const u8* __restrict__ factors, i64 count,
              u32* __restrict__ out) {
    for (i64 k = GCODEC_FIRST; k < count; k += GCODEC_STEP)
        out[k] = multiply_bits(*scale, (u32)(factors[k] + FIRST) << BELOW);
}

// Whole warps; factors: ceil(n / length). A warp chooses for a block of elements; each half of it
// tries every other factor.
extern "C" __global__ void __launch_bounds__(256, 4)
    choose(const u32* __restrict__ x, i64 n, i64 length, const u32* __restrict__ number, u32 top,
           u32 mantissa, u8* __restrict__ factors) {
    u32 scale = *number;
    i32 half = (i32)(threadIdx.x & 31) / LANES, lane = (i32)threadIdx.x & (LANES - 1);
    for (i64 k = GCODEC_FIRST >> 5; k * length < n; k += GCODEC_STEP >> 5) {
        i64 start = k * length, stop = min(start + length, n);
        i64 whole = stop - (stop - start) % LANES;
        u32 largest = 0;
        for (i64 i = start + (threadIdx.x & 31); i < stop; i += 32)
            largest = max(largest, x[i] & MAGNITUDE);
        for (int step = 16; step; step /= 2)
            largest = max(largest, __shfl_xor_sync(EVERY_LANE, largest, step));
        i32 needed = (i32)(divide_bits(largest, multiply_bits(scale, top)) >> BELOW);
        f64 best = 0.0;
        i32 chosen = -1;
        for (i32 pair = 0; pair < TRIED; pair += 2) {  // the same for all lanes
            i32 factor = min(max(needed - FIRST + MORE - pair - half, 0), 255);
            u32 delta = multiply_bits(scale, (u32)(factor + FIRST) << BELOW);
            bool fits = largest && delta && multiply_bits(delta, top) < INFINITY_BITS;
            f64 sum = 0.0, tail = 0.0;
            if (fits) {
                for (i64 i = start + lane; i < whole; i += LANES)
                    sum = __dadd_rn(sum, square_of(x[i] & MAGNITUDE, delta, top, mantissa));
                for (i64 i = whole; i < stop; ++i)
                    tail = __dadd_rn(tail, square_of(x[i] & MAGNITUDE, delta, top, mantissa));
            }
            for (int width = LANES / 2; width; width /= 2)
                sum = __dadd_rn(sum, __shfl_down_sync(EVERY_LANE, sum, width, LANES));
            f64 error = __dadd_rn(tail, sum);  // valid in the first lane of each half
            for (i32 h = 0; h < 2; ++h) {
                f64 tried_error = __shfl_sync(EVERY_LANE, error, h * LANES);
                i32 tried = __shfl_sync(EVERY_LANE, fits ? factor : -1, h * LANES);
                if (tried >= 0 && (chosen < 0 || tried_error < best)) {
                    best = tried_error;
                    chosen = tried;
                }
            }
        }
        if ((threadIdx.x & 31) == 0) factors[k] = (u8)max(chosen, 0);
    }
}

// In the next kernels, x, values and out have n elements, the first of which is number `first`; scales:
// one for each block of `length` up to the last element.

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

// Writes the products, or if `add`, adds `times` each of them to `out`.
extern "C" __global__ void __launch_bounds__(256)
    multiply(const u32* values, i64 n, i64 first, i64 length, const u32* __restrict__ scales,
             f32 times, bool add, u32* out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u32 product = multiply_bits(values[i], scales[(first + i) / length]);
        out[i] = add ? add_bits(out[i], multiply_bits(bits_of(times), product)) : product;
    }
}
