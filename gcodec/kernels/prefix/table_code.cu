// Twin of table_code.py: the words of a table.
#include "runtime/types.cuh"

static const int SYMBOLS = 256;

// `table` receives word * 64 + length for the canonical word of each symbol, 0 for a symbol without one;
// then 0 in place of the parameter of a rule.
extern "C" __global__ void __launch_bounds__(SYMBOLS)
canonical_words(const u8* lengths, u64* table) {
    __shared__ u8 all_lengths[SYMBOLS];
    int k = threadIdx.x;
    u32 own = lengths[k], word = 0;
    all_lengths[k] = (u8)own;
    __syncthreads();
    for (int other = 0; other < SYMBOLS; ++other) {
        u32 length = all_lengths[other];
        // A shorter word takes the place of several words of this length.
        if (length && length < own) word += 1u << (own - length);
        else if (length == own && other < k) word += 1;
    }
    table[k] = own ? (u64)word << 6 | own : 0;
    if (k == 0) table[SYMBOLS] = 0;
}
