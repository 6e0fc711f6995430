// Twin of scatter.py: few elements of an array by their positions, taken, replaced, or added.
//
// The host checks that its positions are inside the array, and rise if they must. Nevertheless, no
// kernel reads or writes outside.
#include "kernels/numeric/floats.cuh"

static const u32 MINUS_ZERO = SIGN_BIT;

// Takes `count` runs of `length` elements, given their numbers.
extern "C" __global__ void __launch_bounds__(256)
    take_runs(const u32* __restrict__ values, i64 n, const i64* __restrict__ chosen, i64 count,
              i64 length, u32* __restrict__ out) {
    // out: count·length elements
    for (i64 k = GCODEC_FIRST; k < count * length; k += GCODEC_STEP) {
        i64 at = chosen[k / length] * length + k % length;
        if ((u64)at < (u64)n) out[k] = values[at];
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
    // values, sums: k elements; out: n elements. A sum is an element of `out` plus a product.
    for (i64 j = GCODEC_FIRST; j < k; j += GCODEC_STEP)
        if ((u64)positions[j] < (u64)n)
            sums[j] = add_bits(out[positions[j]], multiply_bits(scale, values[j]));
}

extern "C" __global__ void __launch_bounds__(256) add_zero(i64 n, u32 zero, u32* __restrict__ out) {
    // Adds zero, which is +0 and changes only −0, or NaN.
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u32 bits = out[i];
        if (is_nan(zero)) {
            out[i] = zero;
        } else if (bits == MINUS_ZERO) {
            out[i] = 0;
        }
    }
}
