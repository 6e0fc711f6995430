// Arithmetic of float32 that keeps subnormal numbers, whatever the compiler options.
//
// CuPy compiles with -ftz=true: instructions on float32 then read and write subnormal numbers as
// zero. So kernels compare bits; and where an operand or a result may be subnormal, inline PTX
// computes the sum, product or quotient. Without such instructions, as on the host, the result is
// computed in float64 and rounded here. The result is the same: with 53 bits, rounding twice equals
// rounding once (53 >= 2 * 24 + 2). Below 2^-126, where fewer bits remain, sums and products are
// exact in float64, and the relative distance of a quotient from a tie is at least 2^-48.
#pragma once
#include "runtime/types.cuh"

static const u32 SIGN_BIT = 0x80000000u;
static const u32 MAGNITUDE = 0x7FFFFFFFu;
static const u32 INFINITY_BITS = 0x7F800000u;
static const u32 EXPONENT = 0x7F800000u;
static const u32 QUIET = 0x00400000u;  // of a NaN

__device__ __forceinline__ u32 bits_of(f32 x) { return __float_as_uint(x); }
__device__ __forceinline__ f32 float_of(u32 bits) { return __uint_as_float(bits); }
__device__ __forceinline__ bool is_nan(u32 bits) { return (bits & MAGNITUDE) > INFINITY_BITS; }
__device__ __forceinline__ bool is_finite(u32 bits) { return (bits & MAGNITUDE) < INFINITY_BITS; }

// A key that orders bit patterns like the numbers: −0 equals +0, NaN is beyond infinity.
__device__ __forceinline__ i32 order_of(u32 bits) {
    i32 magnitude = (i32)(bits & MAGNITUDE);
    return bits & SIGN_BIT ? -magnitude : magnitude;
}
__device__ __forceinline__ bool less(u32 a, u32 b) {
    return !is_nan(a) && !is_nan(b) && order_of(a) < order_of(b);
}
__device__ __forceinline__ bool less_equal(u32 a, u32 b) {
    return !is_nan(a) && !is_nan(b) && order_of(a) <= order_of(b);
}

// 2^exponent, a normal number.
__device__ __forceinline__ f64 power_of_two(i64 exponent) {
    return __longlong_as_double((exponent + 1023) << 52);
}

// float32 to float64, exactly, given its bits.
__device__ __forceinline__ f64 widened(u32 bits) {
    if (bits & EXPONENT) return (f64)float_of(bits);
    f64 size = (f64)(i32)(bits & MAGNITUDE) * 0x1p-149;  // the mantissa counts units of 2^-149
    return bits & SIGN_BIT ? -size : size;
}

// float64 to float32, to nearest, ties to even: the bits.
__device__ __forceinline__ u32 narrowed(f64 x) {
    u64 bits = (u64)__double_as_longlong(x);
    u64 magnitude = bits & 0x7FFFFFFFFFFFFFFFull;
    if (magnitude >= 0x3810000000000000ull)  // from 2^-126 on, NaN included
        return bits_of((f32)x);
    // The last bit of 2^-97 counts 2^-149, so adding it rounds to that.
    f64 sum = __longlong_as_double((i64)magnitude) + 0x1p-97;
    u32 units = (u32)((u64)__double_as_longlong(sum) - (u64)__double_as_longlong(0x1p-97));
    return units | (u32)(bits >> 32 & SIGN_BIT);
}

// The NaN of a sum or product as on x86: the first NaN operand, made quiet.
__device__ __forceinline__ u32 nan_of(u32 a, u32 b) {
    return is_nan(a) ? a | QUIET : is_nan(b) ? b | QUIET : SIGN_BIT | INFINITY_BITS | QUIET;
}

__device__ __forceinline__ bool may_be_subnormal(u32 bits) { return (bits & EXPONENT) == 0; }

#ifdef __CUDA_ARCH__

// PTX instructions without .ftz keep subnormal numbers, and instructions with .rn are never
// contracted.

// a + b
__device__ __forceinline__ u32 add_bits(u32 a, u32 b) {
    f32 sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(float_of(a)), "f"(float_of(b)));
    return is_nan(bits_of(sum)) ? nan_of(a, b) : bits_of(sum);
}

// a * b
__device__ __forceinline__ u32 multiply_bits(u32 a, u32 b) {
    f32 product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(float_of(a)), "f"(float_of(b)));
    return is_nan(bits_of(product)) ? nan_of(a, b) : bits_of(product);
}

// a / b
__device__ __forceinline__ u32 divide_bits(u32 a, u32 b) {
    f32 quotient;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(quotient) : "f"(float_of(a)), "f"(float_of(b)));
    return bits_of(quotient);
}

// a * b + c, rounded once
__device__ __forceinline__ u32 fused_bits(u32 a, u32 b, u32 c) {
    f32 sum;
    asm("fma.rn.f32 %0, %1, %2, %3;"
        : "=f"(sum)
        : "f"(float_of(a)), "f"(float_of(b)), "f"(float_of(c)));
    return bits_of(sum);
}

#else

// The same functions without PTX.

__device__ __forceinline__ u32 add_bits(u32 a, u32 b) {
    u32 sum = bits_of(__fadd_rn(float_of(a), float_of(b)));
    if (may_be_subnormal(a) | may_be_subnormal(b) | may_be_subnormal(sum))
        sum = narrowed(widened(a) + widened(b));
    return is_nan(sum) ? nan_of(a, b) : sum;
}

__device__ __forceinline__ u32 multiply_bits(u32 a, u32 b) {
    u32 product = bits_of(__fmul_rn(float_of(a), float_of(b)));
    // A product just below 2^-126 may have been rounded up to it, which is correct as well.
    if (may_be_subnormal(a) | may_be_subnormal(b) | may_be_subnormal(product))
        product = narrowed(widened(a) * widened(b));
    return is_nan(product) ? nan_of(a, b) : product;
}

__device__ __forceinline__ u32 divide_bits(u32 a, u32 b) {
    return narrowed(widened(a) / widened(b));
}

__device__ __forceinline__ u32 fused_bits(u32 a, u32 b, u32 c) {
    f64 product = widened(a) * widened(b), other = widened(c), sum = product + other;
    f64 part = sum - product, error = (product - (sum - part)) + (other - part);
    // An inexact sum is rounded to the neighbor whose last bit is 1, so that the second rounding
    // sees on which side of a tie it is.
    u64 bits = (u64)__double_as_longlong(sum);
    if ((error > 0 || error < 0) && !(bits & 1)) bits += (error > 0) == (sum > 0) ? 1 : -1;
    return narrowed(__longlong_as_double((i64)bits));
}

#endif

// a - b
__device__ __forceinline__ u32 subtract_bits(u32 a, u32 b) { return add_bits(a, b ^ SIGN_BIT); }

// factor * value if the product is to be added, else the value.
__device__ __forceinline__ u32 times(u32 value, f32 factor, i32 add) {
    return add ? multiply_bits(bits_of(factor), value) : value;
}

// Elements i to i + 3 of n, or `fill` after the end; a single load if they are aligned to 16 bytes.
__device__ __forceinline__ uint4 load_four(const u32* x, i64 i, i64 n, u32 fill) {
    if (i + 4 <= n && ((u64)(x + i) & 15) == 0) return *(const uint4*)(x + i);
    return make_uint4(i < n ? x[i] : fill, i + 1 < n ? x[i + 1] : fill, i + 2 < n ? x[i + 2] : fill,
                      i + 3 < n ? x[i + 3] : fill);
}

__device__ __forceinline__ void store_four(u32* x, i64 i, i64 n, uint4 values) {
    if (i + 4 <= n && ((u64)(x + i) & 15) == 0) {
        *(uint4*)(x + i) = values;
        return;
    }
    if (i < n) x[i] = values.x;
    if (i + 1 < n) x[i + 1] = values.y;
    if (i + 2 < n) x[i + 2] = values.z;
    if (i + 3 < n) x[i + 3] = values.w;
}

// a + factor·b for four numbers each.
__device__ __forceinline__ uint4 add_multiples(uint4 a, u32 factor, uint4 b) {
    return make_uint4(add_bits(a.x, multiply_bits(factor, b.x)), add_bits(a.y, multiply_bits(factor, b.y)),
                      add_bits(a.z, multiply_bits(factor, b.z)), add_bits(a.w, multiply_bits(factor, b.w)));
}

// Elements i to i + 7 of n, and zeros after the end.
__device__ __forceinline__ void load_eight(const u32* x, i64 i, i64 n, u32* values) {
    uint4 first = load_four(x, i, n, 0), second = load_four(x, i + 4, n, 0);
    values[0] = first.x, values[1] = first.y, values[2] = first.z, values[3] = first.w;
    values[4] = second.x, values[5] = second.y, values[6] = second.z, values[7] = second.w;
}

// Writes eight values, or if `add`, adds `factor` times each of them.
__device__ __forceinline__ void store_eight(u32* x, i64 i, i64 n, const u32* values, f32 factor = 0,
                                            bool add = false) {
#pragma unroll
    for (int k = 0; k < 8; k += 4) {
        uint4 four = make_uint4(values[k], values[k + 1], values[k + 2], values[k + 3]);
        if (add) four = add_multiples(load_four(x, i + k, n, 0), bits_of(factor), four);
        store_four(x, i + k, n, four);
    }
}
