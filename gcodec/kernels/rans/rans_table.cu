// Twin of rans_table.py: the tables of a rANS writer, indexed by symbol.
#include "kernels/numeric/scan.cuh"

static const int SYMBOLS = 256;

static __device__ __forceinline__ void put_symbol(i64 frequency, i64 log2_total, u64* reciprocal, u32* pair) {
    __shared__ i64 scratch[SYMBOLS / WARP];
    i64 first = scan_block<Sum>(frequency, scratch).before;  // slot of the symbol
    u64 divisor = frequency ? (u64)frequency : 1;
    *reciprocal = ((1ull << (32 + log2_total)) - 1 + divisor) / divisor;
    *pair = (u32)(frequency | first << 16);
}

extern "C" __global__ void __launch_bounds__(SYMBOLS)
write_tables(const i64* frequencies, const i64* log2_total, u64* reciprocals, u32* pairs) {
    put_symbol(frequencies[threadIdx.x], *log2_total, reciprocals + threadIdx.x, pairs + threadIdx.x);
}

// The tables of several models, a block of threads for each model.
extern "C" __global__ void __launch_bounds__(SYMBOLS)
write_model_tables(const u16* frequencies, i64 log2_total, u64* reciprocals, u32* pairs) {
    i64 at = (i64)blockIdx.x * SYMBOLS + threadIdx.x;
    put_symbol(frequencies[at], log2_total, reciprocals + at, pairs + at);
}
