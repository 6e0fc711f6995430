// Which of several tables codes counts of bytes in the fewest bits: one that is sent, or one of those
// that both sides know.
#include "kernels/numeric/scan.cuh"

static const int SYMBOLS = 256;

// `sizes` gets the bits of all words by each table of lengths, and `sent` more. A block for a table.
extern "C" __global__ void __launch_bounds__(SYMBOLS)
size_words(const i64* counts, const u8* lengths, i64 sent, i64* sizes) {
    __shared__ i64 scratch[SYMBOLS / WARP];
    i64 nbits = counts[threadIdx.x] * lengths[(i64)blockIdx.x * SYMBOLS + threadIdx.x];
    nbits = scan_block<Sum>(nbits, scratch).total;
    if (threadIdx.x == 0) sizes[blockIdx.x] = nbits + sent;
}

// Copies `row` bytes of the first of the smallest, to which `sizes` has 1 + count: those of the table
// that is sent, and of the others. `which` gets its number, the log2 of what it adds up to, and its size.
extern "C" __global__ void __launch_bounds__(SYMBOLS) choose_table(
    const i64* sizes, i32 count, const u8* own, const u8* known, i64 row, const i64* own_log2,
    const i64* known_log2, u8* numbers, i64* which
) {
    int best = 0;
    for (int k = 1; k <= count; ++k)
        if (sizes[k] < sizes[best]) best = k;
    const u8* from = best ? known + (best - 1) * row : own;
    for (i64 i = threadIdx.x; i < row; i += SYMBOLS) numbers[i] = from[i];
    if (threadIdx.x == 0) {
        which[0] = best;
        which[1] = best ? *known_log2 : *own_log2;
        which[2] = sizes[best];
    }
}

// Which of `count` strings is the shortest, the first of equals, or the one behind them if there is an
// estimate of it that is less, and none of these is very short. `sizes` and `more` have their bits
// together, `symbols` what is counted of each, which `kept` gets of those that are written: that one,
// and of the first ones the shortest. The others are `silent`. told: which, and of the first ones which,
// and its bits. One thread.
extern "C" __global__ void choose_string(
    const i64* sizes, const i64* more, i32 count, const i64* estimate, bool estimated, i64 shortest,
    const i64* symbols, i64* kept, u8* silent, i64* told
) {
    int best = 0;
    for (int k = 1; k < count; ++k)
        if (sizes[k] + more[k] < sizes[best] + more[best]) best = k;
    i64 nbits = sizes[best] + more[best];
    int which = estimated && nbits > shortest && *estimate < nbits ? count : best;
    for (int k = 0; k <= count; ++k) {
        bool written = k == which || k == best;
        kept[k] = written ? symbols[k] : 0;
        silent[k] = !written;
    }
    told[0] = which;
    told[1] = best;
    told[2] = nbits;
}
