// Twin of convert.py: conversion between float32 and other floats, by bit patterns.
#include "kernels/bits/widths.cuh"
#include "kernels/numeric/floats.cuh"

extern "C" __global__ void from_bfloat16(const u16* bits, i64 n, u32* out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) out[i] = (u32)bits[i] << 16;
}

extern "C" __global__ void to_bfloat16(const u32* x, i64 n, u16* out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u32 bits = x[i], top = bits >> 16;
        u32 rounded = (bits + 0x7FFF + (top & 1)) >> 16;
        u32 nan = top & 0x7F ? top : top | 0x40;
        out[i] = (u16)(is_nan(bits) ? nan : rounded);
    }
}

extern "C" __global__ void from_float16(const u16* bits, i64 n, u32* out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u32 half = bits[i], exponent = half & 0x7C00, body = (half & 0x7FFF) << 13;
        // Rebias the exponent by 112, or by 224 for infinity and NaN.
        u32 value = body + (exponent == 0x7C00 ? 0x70000000u : 0x38000000u);
        if (exponent == 0) value = bits_of(__fmul_rn((f32)(i32)(half & 0x3FF), 0x1p-24f));
        out[i] = value | (half & 0x8000) << 16;
    }
}

extern "C" __global__ void to_float16(const u32* x, i64 n, u16* out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u32 bits = x[i], magnitude = bits & MAGNITUDE, sign = bits >> 16 & 0x8000;
        u32 value = ((magnitude + 0xFFF + (magnitude >> 13 & 1)) >> 13) - 0x1C000;
        // Below 2^-14 one unit is 2^-24, to which the addition of 1/2 rounds. Subnormal numbers are
        // less than half a unit.
        if (magnitude < 0x38800000u)
            value = bits_of(__fadd_rn(float_of(magnitude), 0.5f)) - 0x3F000000u;
        if (magnitude >= 0x47800000u) value = 0x7C00;
        u32 payload = magnitude >> 13 & 0x3FF;
        if (magnitude > INFINITY_BITS) value = 0x7C00 | (payload ? payload : 0x200);
        out[i] = (u16)(value | sign);
    }
}

extern "C" __global__ void from_float64(const f64* x, i64 n, u32* out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u64 bits = (u64)__double_as_longlong(x[i]), magnitude = bits & 0x7FFFFFFFFFFFFFFFull;
        // A NaN becomes quiet, and keeps its sign and the upper bits of its payload.
        u32 nan = (u32)(bits >> 32 & SIGN_BIT) | 0x7FC00000u | ((u32)(bits >> 29) & 0x3FFFFF);
        out[i] = magnitude > 0x7FF0000000000000ull ? nan : narrowed(x[i]);
    }
}

extern "C" __global__ void to_float64(const u32* x, i64 n, f64* out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u32 bits = x[i];
        u64 nan = (u64)(bits & SIGN_BIT) << 32 | 0x7FF8000000000000ull | (u64)(bits & 0x3FFFFF) << 29;
        out[i] = is_nan(bits) ? __longlong_as_double((i64)nan) : widened(bits);
    }
}

extern "C" __global__ void finite_or_zero(const u32* x, i64 n, u32* out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) out[i] = is_finite(x[i]) ? x[i] : 0;
}

extern "C" __global__ void as_booleans(const u8* values, i64 n, u8* out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) out[i] = values[i] != 0;
}

// Clears the bit patterns of NaN and infinity; `infinity` has all bits of an exponent.
extern "C" __global__ void clear_nonfinite(u8* patterns, i32 width, u64 infinity, i64 n) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP)
        if ((pattern_at(patterns, width, i) & infinity) == infinity) put_pattern(patterns, width, i, 0);
}
