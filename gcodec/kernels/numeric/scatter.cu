// Twin of scatter.py: few elements of an array by their positions, taken out, replaced, put, or added.
//
// Positions are inside of the array, and rise where they must: the host looks at its own. All the
// same, nothing is read or written outside.
#include "kernels/numeric/floats.cuh"

static const u32 MINUS_ZERO = SIGN_BIT;

extern "C" __global__ void __launch_bounds__(256)
    take_some(const u32* __restrict__ values, i64 n, const i64* __restrict__ positions, i64 k,
              u32* __restrict__ out) {
    // out: k elements
    for (i64 j = GCODEC_FIRST; j < k; j += GCODEC_STEP) {
        i64 at = positions[j];
        if ((u64)at < (u64)n) out[j] = values[at];
    }
}

template <class T>
__device__ __forceinline__ void replace(i64 n, const i64* positions, const T* values, i64 k, T* out) {
    for (i64 j = GCODEC_FIRST; j < k; j += GCODEC_STEP)
        if ((u64)positions[j] < (u64)n) out[positions[j]] = values[j];
}

extern "C" __global__ void __launch_bounds__(256)
    replace_words(i64 n, const i64* __restrict__ positions, const u32* __restrict__ values, i64 k,
                  u32* __restrict__ out) {
    replace(n, positions, values, k, out);
}

extern "C" __global__ void __launch_bounds__(256)
    replace_bytes(i64 n, const i64* __restrict__ positions, const u8* __restrict__ values, i64 k,
                  u8* __restrict__ out) {
    replace(n, positions, values, k, out);
}

extern "C" __global__ void __launch_bounds__(256)
    add_sums(i64 n, const i64* __restrict__ positions, const u32* __restrict__ values, i64 k,
             u32 scale, const u32* __restrict__ out, u32* __restrict__ sums) {
    // values, sums: k elements; out: n. Its elements plus the products become the sums.
    for (i64 j = GCODEC_FIRST; j < k; j += GCODEC_STEP)
        if ((u64)positions[j] < (u64)n)
            sums[j] = add_bits(out[positions[j]], multiply_bits(scale, values[j]));
}

extern "C" __global__ void __launch_bounds__(256) add_zero(i64 n, u32 zero, u32* __restrict__ out) {
    // What is added everywhere: +0, which only changes −0, or NaN.
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u32 bits = out[i];
        if (is_nan(zero)) {
            out[i] = zero;
        } else if (bits == MINUS_ZERO) {
            out[i] = 0;
        }
    }
}
