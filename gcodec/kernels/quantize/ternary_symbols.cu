// Twin of ternary_symbols.py: codes of 0, 1, 2, five in a byte, and their symbols 0, 2, 3.
#include "runtime/types.cuh"

static const int TRITS = 5;  // in a byte

extern "C" __global__ void __launch_bounds__(256)
    trit_symbols(const u8* __restrict__ codes, i64 nbytes, i64 n, u8* __restrict__ out) {
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP) {
        u32 byte = codes[at];
        for (int k = 0; k < TRITS && TRITS * at + k < n; ++k, byte /= 3) {
            u32 code = byte % 3;
            out[TRITS * at + k] = (u8)(code + (code > 0));
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    trit_codes(const u8* __restrict__ symbols, i64 n, u8* __restrict__ out, i64 nbytes) {
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP) {
        u32 byte = 0;
        for (int k = TRITS - 1; k >= 0; --k) {
            u32 symbol = TRITS * at + k < n ? symbols[TRITS * at + k] : 0;
            byte = 3 * byte + symbol - (symbol >> 1);
        }
        out[at] = (u8)byte;
    }
}
