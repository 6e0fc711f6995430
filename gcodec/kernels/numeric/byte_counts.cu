// Twin of byte_counts.py: a histogram of bytes.
#include "kernels/numeric/counting.cuh"

static const i64 PART = 1 << 14;  // bytes that a block counts at a time

extern "C" __global__ void __launch_bounds__(256)
    count_values(const u8* __restrict__ codes, i64 n, u64* __restrict__ counts) {
    // 256 threads; counts: 256. Each warp has a table of its own.
    __shared__ u32 tables[8 * 256];
    u32* table = tables + (threadIdx.x >> 5) * 256;
    for (u32 k = threadIdx.x; k < 8 * 256; k += blockDim.x) tables[k] = 0;
    __syncthreads();
    i64 lead = min((i64)(-(u64)codes & 3), n);  // bytes preceding aligned words
    i64 words = (n - lead) >> 2;
    for (i64 part = (i64)blockIdx.x * PART; part < n; part += (i64)gridDim.x * PART) {
        // Word numbers of the part; the last part includes the remaining words.
        i64 stop = min((part + PART) >> 2, words);
        for (i64 row = part >> 2; row < stop; row += blockDim.x) {  // the same for all threads
            i64 w = row + threadIdx.x;
            u32 word = w < stop ? ((const u32*)(codes + lead))[w] : 0;
            for (int k = 0; k < 4; k++)
                count_place(table, w < stop ? word >> 8 * k & 255 : NOT_COUNTED, 0, 0);
        }
    }
    if (blockIdx.x == 0) {
        // At most three bytes precede the words, and at most three follow them.
        i64 i = threadIdx.x;
        if (i < lead) atomicAdd(&table[codes[i]], 1u);
        i64 tail = lead + 4 * words;
        if (i < n - tail) atomicAdd(&table[codes[tail + i]], 1u);
    }
    __syncthreads();
    u64 total = 0;
    for (u32 w = 0; w < 8; w++) total += tables[w * 256 + threadIdx.x];
    if (total) atomicAdd(&counts[threadIdx.x], total);
}
