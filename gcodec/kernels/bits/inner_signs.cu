// Twin of inner_signs.py: bit patterns of floats whose sign lies below the first mantissa bit.
#include "kernels/bits/widths.cuh"

extern "C" __global__ void __launch_bounds__(256)
    move_signs_in(u8* patterns, i32 width, i32 mantissa, i64 n, i64 base) {
    // patterns: n of `width` bytes, 2 or 4, with `mantissa` bits of mantissa each
    u64 magnitudes = ((u64)1 << (8 * width - 1)) - 1, low = ((u64)1 << (mantissa - 1)) - 1;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u64 bits = pattern_at(patterns, width, i), magnitude = bits & magnitudes;
        u64 rest = magnitude ? (magnitude - ((u64)base << mantissa)) & magnitudes : 0;
        u64 sign = bits >> (8 * width - 1);
        u64 moved = rest >> (mantissa - 1) << mantissa | sign << (mantissa - 1) | (rest & low);
        put_pattern(patterns, width, i, moved);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    move_signs_out(u8* patterns, i32 width, i32 mantissa, i64 n, i64 base) {
    // patterns: n of `width` bytes, 2 or 4, with `mantissa` bits of mantissa each
    u64 magnitudes = ((u64)1 << (8 * width - 1)) - 1, low = ((u64)1 << (mantissa - 1)) - 1;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u64 bits = pattern_at(patterns, width, i);
        u64 rest = bits >> mantissa << (mantissa - 1) | (bits & low);
        u64 magnitude = rest ? (rest + ((u64)base << mantissa)) & magnitudes : 0;
        u64 sign = bits >> (mantissa - 1) & 1;
        put_pattern(patterns, width, i, magnitude | sign << (8 * width - 1));
    }
}
