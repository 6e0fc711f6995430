// Twin of arithmetic.py: element-wise sums, each step rounded once.
#include "kernels/numeric/reduce.cuh"

// `out` may be the residual; `largest` is raised to the bits of the largest magnitude.
extern "C" __global__ void correct(
    const u32* x, const u32* residual, f32 decay, i64 n, u32* out, u32* largest) {
    u32 top = 0;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u32 sum = add_bits(x[i], multiply_bits(bits_of(decay), residual[i]));
        out[i] = sum;
        top = max(top, sum & MAGNITUDE);
    }
    raise_largest(top, largest);
}

extern "C" __global__ void add_scaled(const u32* decoded, f32 scale, u32* out, i64 n) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP)
        out[i] = add_bits(out[i], multiply_bits(bits_of(scale), decoded[i]));
}
