// Twin of scatter.py: few elements of an array by their positions, taken out, replaced, put, or added.
//
// Positions that are not inside of the array, or do not rise where they must, raise `wrong`, and
// nothing is read or written there.
#include "floats.cuh"

static const u32 MINUS_ZERO = SIGN_BIT;

extern "C" __global__ void __launch_bounds__(256)
    take_some(const u32* __restrict__ values, i64 n, const i64* __restrict__ positions, i64 k,
              u32* __restrict__ out, u32* __restrict__ wrong) {
    // out: k elements
    for (i64 j = GCODEC_FIRST; j < k; j += GCODEC_STEP) {
        i64 at = positions[j];
        if ((u64)at < (u64)n)
            out[j] = values[at];
        else
            atomicMax(wrong, 1u);
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

__device__ __forceinline__ bool is_next(const i64* positions, i64 j, i64 n) {
    return (u64)positions[j] < (u64)n && (j == 0 || positions[j - 1] < positions[j]);
}

extern "C" __global__ void __launch_bounds__(256)
    put(i64 n, const i64* __restrict__ positions, const u32* __restrict__ values, i64 k,
        u32* __restrict__ out, u32* __restrict__ wrong) {
    // values: k elements; out: n zeros
    for (i64 j = GCODEC_FIRST; j < k; j += GCODEC_STEP)
        if (is_next(positions, j, n))
            out[positions[j]] = values[j];
        else
            atomicMax(wrong, 1u);
}

extern "C" __global__ void __launch_bounds__(256)
    add_sums(i64 n, const i64* __restrict__ positions, const u32* __restrict__ values, i64 k,
             u32 scale, const u32* __restrict__ out, u32* __restrict__ sums,
             u32* __restrict__ wrong) {
    // values, sums: k elements; out: n. Its elements plus the products become the sums.
    for (i64 j = GCODEC_FIRST; j < k; j += GCODEC_STEP)
        if (is_next(positions, j, n))
            sums[j] = add_bits(out[positions[j]], multiply_bits(scale, values[j]));
        else
            atomicMax(wrong, 1u);
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

extern "C" __global__ void __launch_bounds__(256)
    put_sums(i64 n, const i64* __restrict__ positions, const u32* __restrict__ sums, i64 k,
             u32* __restrict__ out) {
    // sums: k elements; out: n
    for (i64 j = GCODEC_FIRST; j < k; j += GCODEC_STEP)
        if (is_next(positions, j, n)) out[positions[j]] = sums[j];
}
