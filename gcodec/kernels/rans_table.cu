// Twin of rans_table.py: what a writer of rANS looks up by symbol.
#include "scan.cuh"

static const int SYMBOLS = 256;

extern "C" __global__ void __launch_bounds__(SYMBOLS)
write_tables(const i64* frequencies, const i64* log2_total, u64* reciprocals, u32* pairs) {
    __shared__ i64 scratch[SYMBOLS / WARP];
    i64 found = frequencies[threadIdx.x];
    i64 first = scan_block<Sum>(found, scratch).before;  // of its slots
    u64 some = found ? (u64)found : 1;
    reciprocals[threadIdx.x] = ((1ull << (32 + *log2_total)) - 1 + some) / some;
    pairs[threadIdx.x] = (u32)(found | first << 16);
}
