// Tables that are sent ahead of strings, put behind the bits before them: a field for each symbol of
// an alphabet. One block, a thread for a symbol. Where nothing is coded, nothing is sent.
#include "kernels/bits/bits.cuh"
#include "kernels/numeric/scan.cuh"

static const int SYMBOLS = 256;
static const int FIELD = 4;  // bits of a length

// Puts the field of each thread, of `width` bits, into zeros; returns the bit behind the last one.
__device__ __forceinline__ i64 put_fields(u32 field, int width, i64 at, u32* words, i64 room,
                                          i64* scratch) {
    Scanned found = scan_block<Sum>(width, scratch);
    BitWriter<true> out(words, room, at + found.before);
    if (width) out.put(field, width);
    out.finish();
    return at + found.total;
}

// `words` has room for all; bits from `at` on are 0. `nbits` gets how many there are then: no more
// than before where `which` is not 0, as another table was chosen. A length has four bits.
extern "C" __global__ void __launch_bounds__(SYMBOLS) put_lengths(
    const u8* lengths, const u8* alphabet, i32 size, const i64* which, i64 at, u32* words, i64 room, i64* nbits
) {
    __shared__ i64 scratch[SYMBOLS / WARP];
    i64 used = scan_block<Sum>(lengths[threadIdx.x], scratch).total;
    bool sent = used && !*which && threadIdx.x < (u32)size;
    u32 length = sent ? lengths[alphabet[threadIdx.x]] : 0;
    i64 end = put_fields(length, sent ? FIELD : 0, at, words, room, scratch);
    if (threadIdx.x == 0) *nbits = end;
}

// A frequency has four bits that tell how many it has, and these without the first; before all is
// the log2 of their sum, and zeros behind them to a whole byte.
extern "C" __global__ void __launch_bounds__(SYMBOLS) put_frequencies(
    const i64* frequencies, const i64* log2_total, const u8* alphabet, i32 size, const i64* which,
    i64 at, u32* words, i64 room, i64* nbits
) {
    __shared__ i64 scratch[SYMBOLS / WARP];
    i64 used = scan_block<Sum>(frequencies[threadIdx.x], scratch).total;
    u32 found = 0;
    int rest = 0, width = 0, length = 0;
    used = *which ? 0 : used;
    if (used && threadIdx.x < (u32)size) {
        found = (u32)frequencies[alphabet[threadIdx.x]];
        length = 32 - __clz((int)found);
        rest = length ? length - 1 : 0;  // of the frequency's bits
        found = (u32)length << rest | (found & ((1u << rest) - 1));
        width = FIELD + rest;
    }
    if (used && threadIdx.x == 0) {
        found |= (u32)*log2_total << width;
        width += FIELD;
    }
    i64 end = put_fields(found, width, at, words, room, scratch);
    if (threadIdx.x == 0) *nbits = (end + 7) & ~7ll;
}
