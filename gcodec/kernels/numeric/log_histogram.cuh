// Histogram of the exponents of float32 values, with 6 bits of the mantissa.
#pragma once
#include "kernels/numeric/counting.cuh"
#include "kernels/numeric/floats.cuh"

static const u32 SHIFT = 17, BINS = 1u << 14;
static const i64 PART = 1 << 15;  // elements, few enough for counts of 16 bits, two in a word

// The bits of |x|, multiplied by 2^64 if `lifted`.
__device__ __forceinline__ u32 magnitude_of(u32 bits, bool lifted) {
    return lifted ? multiply_bits(bits & MAGNITUDE, (127u + 64) << 23) : bits & MAGNITUDE;
}

// Counts n elements in the BINS counts. Whole blocks call it. A magnitude has 31 bits, so its bin is
// below BINS after a shift by SHIFT.
static __device__ __forceinline__ void count_all(const u32* x, i64 n, bool lifted, u64* counts) {
    __shared__ u32 table[BINS / 2];
    for (i64 part = (i64)blockIdx.x * PART; part < n; part += (i64)gridDim.x * PART) {
        for (u32 k = threadIdx.x; k < BINS / 2; k += blockDim.x) table[k] = 0;
        __syncthreads();
        i64 stop = min(part + PART, n);
        for (i64 row = part; row < stop; row += blockDim.x) {  // the same for all threads
            i64 i = row + threadIdx.x;
            u32 place = i < stop ? magnitude_of(x[i], lifted) >> SHIFT : NOT_COUNTED;
            count_place(table, place, 1, 16);
        }
        __syncthreads();
        for (u32 k = threadIdx.x; k < BINS / 2; k += blockDim.x) {
            u32 both = table[k];
            if (both & 0xFFFF) atomicAdd(&counts[2 * k], (u64)(both & 0xFFFF));
            if (both >> 16) atomicAdd(&counts[2 * k + 1], (u64)(both >> 16));
        }
        __syncthreads();
    }
}
