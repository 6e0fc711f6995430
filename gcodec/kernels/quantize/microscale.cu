// Blocks of small floats with a shared scale: from float32 to bytes, and back; see microscale.py.
//
// A thread takes eight elements, and two or four threads have a block. They agree on its largest
// magnitude, each derives the scale from it, and one of them stores that.
#include "kernels/numeric/floats.cuh"
#include "kernels/numeric/philox.cuh"
#include "kernels/quantize/code_words.cuh"
#include "runtime/report.cuh"

static const i64 TOGETHER = 8;  // elements of a thread
static const u32 ONE = 127u << 23, TINY = 1u << 22;  // bits of 1 and of 2^-127
static const u32 QUIET_NAN = INFINITY_BITS | QUIET;
static const u32 E4M3 = 20, REBIAS = 120u << 23;  // low bits of float32 that e4m3 lacks; its exponents
static const u32 LEAST_E4M3 = 0x3C800000, MOST_E4M3 = 0x43E00000;  // bits of 2^-6 and 448
static const u32 SIX = 0x40C00000, LARGEST = 0x45280000;           // bits of 6 and 448 * 6

// Elements of a format; see BlockFormat. For integers, `least` is 0 and numbers have no exponent.
struct Elements {
    i32 width, mantissa, least;
    bool is_integer;

    // The code of a magnitude, to the nearest or, given a random word, to one of the two neighbors.
    __device__ __forceinline__ u32 code(u32 size, bool stochastic, u32 random) const {
        i32 exponent = is_integer ? least : max((i32)(size >> 23) - 127, least);
        f32 units = float_of(multiply_bits(size, (u32)(127 + mantissa - exponent) << 23));
        i32 whole = __float2int_rn(units);
        if (stochastic) {
            f32 below = floorf(units);
            i32 bound = __float2int_rz(__fmul_rn(__fsub_rn(units, below), 0x1p31f));
            whole = __float2int_rz(below) + ((i32)(random >> 1) < bound);
        }
        return (u32)(whole + ((exponent - least) << mantissa));
    }

    __device__ __forceinline__ u32 with_sign(u32 code, u32 sign) const {
        if (is_integer) return sign ? -code & 0xFF : code;
        return code | sign << (width - 1);
    }

    // The number that a code stands for. Magnitudes are finite up to the code `last`; the next one is
    // infinity if the format has it, and others are NaN.
    __device__ __forceinline__ u32 number(u32 code, u32 last, bool has_infinity) const {
        u32 unit = (u32)(127 + least - mantissa) << 23;  // of the smallest exponent
        if (is_integer) return multiply_bits(bits_of((f32)(i8)code), unit);
        u32 size = code & ((1u << (width - 1)) - 1), sign = (code >> (width - 1) & 1) << 31;
        if (size > last) return has_infinity && size == last + 1 ? INFINITY_BITS | sign : QUIET_NAN;
        u32 bits = size >> mantissa ? (size << (23 - mantissa)) + ((u32)(126 + least) << 23)
                                    : multiply_bits(bits_of((f32)size), unit);
        return bits | sign;
    }
};

// How the byte of a scale follows from the largest magnitude of a block: a power of two for MX formats,
// see ScaleRule, and an e4m3 number for NVFP4, whose `divisor` is the scale of the tensor, and `least`
// its reciprocal.
struct Rule {
    bool is_two_level;
    u32 divisor, least;
    const i32* adds;
    i32 count;  // of adds: 1 or 256

    __device__ __forceinline__ u32 scale(u32 top) const {
        if (is_two_level) {
            u32 bits = divide_bits(divide_bits(top, SIX), divisor);
            bits = min(max(bits, LEAST_E4M3), MOST_E4M3);
            return (bits + (1u << (E4M3 - 1)) - 1 - REBIAS + (bits >> E4M3 & 1)) >> E4M3;
        }
        u32 bits = divide_bits(top, divisor);
        i32 scale = ((i32)bits + adds[count == 1 ? 0 : bits >> 23]) >> 23;
        return (u32)min(max(scale, 0), 254);
    }

    // What elements are multiplied by.
    __device__ __forceinline__ u32 factor(u32 scale) const {
        if (is_two_level) return divide_bits(least, (scale << E4M3) + REBIAS);
        return scale ? max((254 - scale) << 23, TINY) : least;
    }
};

// The largest magnitude over 448 * 6, limited. One thread.
extern "C" __global__ void tensor_scale_of(const u32* bits, u32 least, u32 most, u32* out) {
    *out = min(max(divide_bits(*bits, LARGEST), least), most);
}

// `threads` have a block. scales: one for each block; out: the `nbytes` bytes of n elements; largest:
// bits of the largest magnitude of an element. In a block with NaN, the scale is `nan_scale`, and the
// code of NaN and Inf, or of all elements if `all_nan`, is `nan_code`; a block with Inf has
// `infinite_scale`. top: raised to the bits of the largest magnitude of x.
extern "C" __global__ void __launch_bounds__(256)
    microscale_codes(const u32* __restrict__ x, i64 n, u64 seed, bool stochastic, i32 threads,
                     i32 width, i32 mantissa, i32 least, bool is_integer, u32 largest,
                     const u32* __restrict__ tensor_scale, bool is_two_level, u32 divisor,
                     u32 least_factor, const i32* __restrict__ adds, i32 adds_count, u32 nan_code,
                     bool all_nan, u32 nan_scale, u32 infinite_scale, u8* scales, u8* out, i64 nbytes,
                     u32* top) {
    Elements elements = {width, mantissa, least, is_integer};
    Rule rule = {is_two_level, divisor, least_factor, adds, adds_count};
    if (is_two_level) {
        rule.divisor = *tensor_scale;
        rule.least = divide_bits(ONE, rule.divisor);
    }
    bool pairs = width == 4;
    u32 most = 0;
    i64 whole = (n + 32 * TOGETHER - 1) / (32 * TOGETHER) * (32 * TOGETHER);  // of whole warps
    for (i64 i = TOGETHER * GCODEC_FIRST; i < whole; i += TOGETHER * GCODEC_STEP) {
        u32 values[TOGETHER], codes[TOGETHER], own = 0;
        load_eight(x, i, n, values);
        for (int k = 0; k < TOGETHER; ++k) own = max(own, values[k] & MAGNITUDE);
        for (int step = threads / 2; step; step /= 2)
            own = max(own, __shfl_xor_sync(0xFFFFFFFFu, own, step));
        most = max(most, own);
        if (i >= n) continue;
        bool has_nan = own > INFINITY_BITS, has_infinity = own == INFINITY_BITS;
        u32 scale = has_nan ? nan_scale : has_infinity ? infinite_scale : rule.scale(own);
        u32 factor = rule.factor(scale);
        if (i / TOGETHER % threads == 0) scales[i / TOGETHER / threads] = (u8)scale;
        Words random = {};
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {
            u32 bits = values[k], sign = bits >> 31;
            if (stochastic && k % 4 == 0) random = philox(seed, (u64)(i + k) >> 2, ROUNDING);
            if (has_nan) {
                sign |= (bits & MAGNITUDE) == INFINITY_BITS;
                u32 code = all_nan ? nan_code : (is_finite(bits) ? 0 : nan_code) | sign << (width - 1);
                codes[k] = i + k < n ? code : 0;
            } else {
                u32 size = min(multiply_bits(bits, factor) & MAGNITUDE, largest);
                codes[k] = elements.with_sign(elements.code(size, stochastic, random.of[k % 4]), sign);
            }
        }
        u64 word = 0;  // of a pair, the first code is in the low half of a byte
        for (int k = 0; k < TOGETHER; ++k) word |= (u64)codes[k] << (pairs ? 4 : 8) * k;
        store_codes(out, pairs ? i / 2 : i, nbytes, pairs ? 4 : 8, word);
    }
    for (int step = 16; step; step /= 2)
        most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
    if ((threadIdx.x & 31) == 0 && most) atomicMax(top, most);
}

// Writes the values of n elements, or adds `times` each of them; see microscale_codes, and
// Elements::number for `last` and `has_infinity`. 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    microscale_values(const u8* __restrict__ scales, const u8* __restrict__ data, i64 nbytes, i64 n,
                      i32 threads, i32 width, i32 mantissa, i32 least, bool is_integer, u32 last,
                      bool has_infinity, const u32* __restrict__ tensor_scale, bool is_two_level,
                      f32 times, bool add, u32* out) {
    __shared__ u32 numbers[256], factors[256];
    Elements elements = {width, mantissa, least, is_integer}, e4m3 = {8, 3, -6, false};
    u32 own = threadIdx.x;
    numbers[own] = elements.number(own, last, has_infinity);
    if (is_two_level)
        factors[own] = multiply_bits(e4m3.number(own, 0x7E, false), *tensor_scale);
    else
        factors[own] = own == 255 ? QUIET_NAN : own ? own << 23 : TINY;
    __syncthreads();
    bool pairs = width == 4;
    for (i64 i = TOGETHER * GCODEC_FIRST; i < n; i += TOGETHER * GCODEC_STEP) {
        u32 factor = factors[scales[i / TOGETHER / threads]], values[TOGETHER];
        u64 word = load_codes(data, pairs ? i / 2 : i, nbytes, pairs ? 4 : 8);
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {
            u32 code = (u32)(word >> (pairs ? 4 : 8) * k) & (pairs ? 15 : 255);
            values[k] = multiply_bits(numbers[code], factor);
        }
        store_eight(out, i, n, values, times, add);
    }
}

// Reports 256 times the place of the first byte above `most`, plus that byte.
extern "C" __global__ void __launch_bounds__(256)
    first_above(const u8* __restrict__ bytes, i64 n, u32 most, u64* wrong) {
#pragma unroll 1
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        if (bytes[i] <= most) continue;
        report(wrong, i << 8 | bytes[i]);
        return;
    }
}
