// The squared error of a minifloat.
#pragma once
#include "kernels/numeric/floats.cuh"

// All arguments but the mantissa's width are the bits of float32 numbers that are not negative.
__device__ __forceinline__ f64 square_of(u32 magnitude, u32 delta, u32 top, u32 mantissa) {
    f32 ratio = float_of(min(divide_bits(magnitude, delta), top));
    // Adding and subtracting 1.5·2^23 units rounds to a unit, ties to even. The unit is the last bit of
    // the mantissa, which is the same for all levels below 2.
    u32 unit = max(bits_of(ratio) & EXPONENT, 128u << 23);
    f32 large = float_of((unit + ((23 - mantissa) << 23)) | 1u << 22);
    f32 level = __fsub_rn(__fadd_rn(ratio, large), large);
    f64 error = widened(magnitude) - widened(multiply_bits(bits_of(level), delta));
    return __dmul_rn(error, error);
}
