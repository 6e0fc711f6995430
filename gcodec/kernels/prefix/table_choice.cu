// Selection of the table that codes counts of bytes in the fewest bits: one that the payload stores, or
// a predefined one.
#include "kernels/numeric/scan.cuh"

static const int SYMBOLS = 256;

// `sizes` receives the bits of all words by each table of lengths, plus `sent`. A block for each table.
extern "C" __global__ void __launch_bounds__(SYMBOLS)
size_words(const i64* counts, const u8* lengths, i64 sent, i64* sizes) {
    __shared__ i64 scratch[SYMBOLS / WARP];
    i64 nbits = counts[threadIdx.x] * lengths[(i64)blockIdx.x * SYMBOLS + threadIdx.x];
    nbits = scan_block<Sum>(nbits, scratch).total;
    if (threadIdx.x == 0) sizes[blockIdx.x] = nbits + sent;
}

// Copies the `row` bytes of the table of least size, of equals the first. `sizes` has 1 + count elements:
// the size of the stored table, then those of the predefined ones. `which` receives the number of the
// table, the log2 of its total, and its size.
extern "C" __global__ void __launch_bounds__(SYMBOLS) choose_table(
    const i64* sizes, i32 count, const u8* own, const u8* predefined, i64 row, const i64* own_log2,
    const i64* predefined_log2, u8* numbers, i64* which
) {
    int best = 0;
    for (int k = 1; k <= count; ++k)
        if (sizes[k] < sizes[best]) best = k;
    const u8* from = best ? predefined + (best - 1) * row : own;
    for (i64 i = threadIdx.x; i < row; i += SYMBOLS) numbers[i] = from[i];
    if (threadIdx.x == 0) {
        which[0] = best;
        which[1] = best ? *predefined_log2 : *own_log2;
        which[2] = sizes[best];
    }
}

// Selects the shortest of `count` strings, of equals the first; or the string after them if its estimate
// is shorter, and none of them is at most `shortest`. A string has sizes[k] + more[k] bits. `kept`
// receives symbols[k] for the selected string and for the shortest of the first `count`, which are both
// written, and 0 for all others, whose `closed` is 1. `choice` receives the selected string, the
// shortest of the first, and its bits. One thread.
extern "C" __global__ void choose_string(
    const i64* sizes, const i64* more, i32 count, const i64* estimate, bool estimated, i64 shortest,
    const i64* symbols, i64* kept, u8* closed, i64* choice
) {
    int best = 0;
    for (int k = 1; k < count; ++k)
        if (sizes[k] + more[k] < sizes[best] + more[best]) best = k;
    i64 nbits = sizes[best] + more[best];
    int which = estimated && nbits > shortest && *estimate < nbits ? count : best;
    for (int k = 0; k <= count; ++k) {
        bool written = k == which || k == best;
        kept[k] = written ? symbols[k] : 0;
        closed[k] = !written;
    }
    choice[0] = which;
    choice[1] = best;
    choice[2] = nbits;
}
