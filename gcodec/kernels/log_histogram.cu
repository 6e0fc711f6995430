// Twin of log_histogram.py: how often each exponent of a float32 occurs, with 6 bits below it.
#include "counting.cuh"
#include "floats.cuh"

static const u32 SHIFT = 17, BINS = 1u << 14;
static const i64 PART = 1 << 15;  // elements, few enough for counts of 16 bits, of which a word has two

extern "C" __global__ void __launch_bounds__(256)
    count_magnitudes(const u32* __restrict__ x, i64 n, u64* __restrict__ counts) {
    // 256 threads; counts: BINS. A magnitude has 31 bits, so that without SHIFT of them it is below
    // BINS.
    __shared__ u32 table[BINS / 2];
    for (i64 part = (i64)blockIdx.x * PART; part < n; part += (i64)gridDim.x * PART) {
        for (u32 k = threadIdx.x; k < BINS / 2; k += blockDim.x) table[k] = 0;
        __syncthreads();
        i64 stop = min(part + PART, n);
        for (i64 row = part; row < stop; row += blockDim.x) {  // the same for all threads
            i64 i = row + threadIdx.x;
            count_place(table, i < stop ? (x[i] & MAGNITUDE) >> SHIFT : NOT_COUNTED, 1, 16);
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
