// Twin of table_code.py: the words of a table.
#include "runtime/types.cuh"

static const int SYMBOLS = 256;

// `table` gets the canonical word of each symbol times 64, plus its length; 0 where there is none, and
// for the parameter that other codes have.
extern "C" __global__ void __launch_bounds__(SYMBOLS)
canonical_words(const u8* lengths, u64* table) {
    __shared__ u8 given[SYMBOLS];
    int k = threadIdx.x;
    u32 own = lengths[k], word = 0;
    given[k] = (u8)own;
    __syncthreads();
    for (int other = 0; other < SYMBOLS; ++other) {
        u32 length = given[other];
        // A word that is shorter takes the place of more than one.
        if (length && length < own) word += 1u << (own - length);
        else if (length == own && other < k) word += 1;
    }
    table[k] = own ? (u64)word << 6 | own : 0;
    if (k == 0) table[SYMBOLS] = 0;
}
