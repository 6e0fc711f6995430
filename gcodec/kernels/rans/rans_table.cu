// Twin of rans_table.py: what a writer of rANS looks up by symbol.
#include "kernels/numeric/scan.cuh"

static const int SYMBOLS = 256;

static __device__ __forceinline__ void put_symbol(i64 found, i64 log2_total, u64* reciprocal, u32* pair) {
    __shared__ i64 scratch[SYMBOLS / WARP];
    i64 first = scan_block<Sum>(found, scratch).before;  // of its slots
    u64 some = found ? (u64)found : 1;
    *reciprocal = ((1ull << (32 + log2_total)) - 1 + some) / some;
    *pair = (u32)(found | first << 16);
}

extern "C" __global__ void __launch_bounds__(SYMBOLS)
write_tables(const i64* frequencies, const i64* log2_total, u64* reciprocals, u32* pairs) {
    put_symbol(frequencies[threadIdx.x], *log2_total, reciprocals + threadIdx.x, pairs + threadIdx.x);
}

// Of several models, a block for each.
extern "C" __global__ void __launch_bounds__(SYMBOLS)
write_model_tables(const u16* frequencies, i64 log2_total, u64* reciprocals, u32* pairs) {
    i64 at = (i64)blockIdx.x * SYMBOLS + threadIdx.x;
    put_symbol(frequencies[at], log2_total, reciprocals + at, pairs + at);
}
