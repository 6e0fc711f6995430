// What coding a magnitude as a minifloat leaves over.
#pragma once
#include "kernels/numeric/floats.cuh"

// The square of it. Given are the bits of float32 numbers that are not negative.
__device__ __forceinline__ f64 square_of(u32 magnitude, u32 delta, u32 top, u32 mantissa) {
    f32 ratio = float_of(min(divide_bits(magnitude, delta), top));
    // Adding 1.5·2^23 units and taking them away again rounds to a unit, ties to even: to one of
    // the last bit of the mantissa, which below 2 is the same.
    u32 unit = max(bits_of(ratio) & EXPONENT, 128u << 23);
    f32 large = float_of((unit + ((23 - mantissa) << 23)) | 1u << 22);
    f32 level = __fsub_rn(__fadd_rn(ratio, large), large);
    f64 error = widened(magnitude) - widened(multiply_bits(bits_of(level), delta));
    return __dmul_rn(error, error);
}
