// Of the twin of level_forms.py: the Rice words of a parameter that a device has found.
#include "kernels/prefix/codewords.cuh"

static const u64 MOST_NBITS = 28;  // of a word in a table

// `table` gets the words of the symbols below `size`, 0 where they are too long, and the parameter.
extern "C" __global__ void __launch_bounds__(256)
rice_words(const i64* parameter, i32 mapping, u64 shift, i64 size, u64* table) {
    Code code = {RICE, mapping, shift, (u64)*parameter, 0};
    for (i64 symbol = GCODEC_FIRST; symbol < size; symbol += GCODEC_STEP) {
        int before;
        u32 sign;
        Word word = spelled(code, (u64)symbol, &before, &sign);
        u64 rest = word.zeros + (u64)word.nbits, nbits = rest + (u64)before;
        bool is_short = word.zeros < MOST_NBITS && nbits <= MOST_NBITS;
        u64 bits = is_short && before ? (u64)sign << rest | word.low : word.low;
        table[symbol] = is_short ? bits << 6 | nbits : 0;
    }
    if (GCODEC_FIRST == 0) table[size] = code.parameter;
}
