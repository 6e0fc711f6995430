// Twins of the kernels of arithmetic.py: sums, each step rounded once.
#include "floats.cuh"

extern "C" __global__ void corrected(
    const u32* x, const u32* residual, f32 decay, i64 n, u32* out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP)
        out[i] = add_bits(x[i], multiply_bits(bits_of(decay), residual[i]));
}

extern "C" __global__ void correct(const u32* x, u32* residual, f32 decay, i64 n) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP)
        residual[i] = add_bits(x[i], multiply_bits(bits_of(decay), residual[i]));
}

extern "C" __global__ void add_scaled(const u32* decoded, f32 scale, u32* out, i64 n) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP)
        out[i] = add_bits(out[i], multiply_bits(bits_of(scale), decoded[i]));
}
