// Twin of row_differences.py: differences of bytes from the bytes a row above.
#include "runtime/types.cuh"

static const i64 BAND = 64;  // rows of a band

__device__ __forceinline__ u8 joined(int high, int low) {
    return (u8)((high & 128) | (low & 127));
}

extern "C" __global__ void __launch_bounds__(256)
    subtract_above(const u8* __restrict__ symbols, i64 n, i64 row, u8* __restrict__ differences) {
    // symbols, differences: n; row > 0
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        int above = i / row % BAND ? symbols[i - row] : 0;
        differences[i] = joined(symbols[i] ^ above, symbols[i] - above);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    add_above(i64 columns, i64 n, i64 row, u8* __restrict__ symbols) {
    // symbols: n; row > 0; columns: those of all bands, each of which a thread adds up
    for (i64 column = GCODEC_FIRST; column < columns; column += GCODEC_STEP) {
        i64 first = column / row * BAND * row, stop = min(n, first + BAND * row);
        u8 sum = 0;
        for (i64 i = first + column % row; i < stop; i += row)
            symbols[i] = sum = joined(symbols[i] ^ sum, symbols[i] + sum);
    }
}
