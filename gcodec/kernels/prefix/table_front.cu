// Tables that precede strings: a field for each symbol of an alphabet, appended to the preceding bits.
// One block, a thread for each symbol. If no symbol is coded, there is no table.
#include "kernels/bits/bits.cuh"
#include "kernels/numeric/scan.cuh"

static const int SYMBOLS = 256;
static const int FIELD = 4;  // bits of the field of a length

// Puts the field of each thread, of `width` bits, into zeros; returns the bit after the last.
__device__ __forceinline__ i64 put_fields(u32 field, int width, i64 at, u32* words, i64 room,
                                          i64* scratch) {
    Scanned nbits = scan_block<Sum>(width, scratch);
    BitWriter<true> out(words, room, at + nbits.before);
    if (width) out.put(field, width);
    out.finish();
    return at + nbits.total;
}

// `words` has room for the table; its bits from `at` on are 0. `nbits` receives the number of bits with
// the table: still `at` if `which` is not 0, as another table was chosen. A length has four bits.
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

// A frequency has a field of four bits for its bit length, then its bits after the first. The log2 of
// the sum precedes the frequencies; zeros follow up to a whole byte.
extern "C" __global__ void __launch_bounds__(SYMBOLS) put_frequencies(
    const i64* frequencies, const i64* log2_total, const u8* alphabet, i32 size, const i64* which,
    i64 at, u32* words, i64 room, i64* nbits
) {
    __shared__ i64 scratch[SYMBOLS / WARP];
    i64 used = scan_block<Sum>(frequencies[threadIdx.x], scratch).total;
    u32 field = 0;
    int width = 0;
    used = *which ? 0 : used;
    if (used && threadIdx.x < (u32)size) {
        u32 frequency = (u32)frequencies[alphabet[threadIdx.x]];
        int length = 32 - __clz((int)frequency), low = length ? length - 1 : 0;
        field = (u32)length << low | (frequency & ((1u << low) - 1));
        width = FIELD + low;
    }
    if (used && threadIdx.x == 0) {
        field |= (u32)*log2_total << width;
        width += FIELD;
    }
    i64 end = put_fields(field, width, at, words, room, scratch);
    if (threadIdx.x == 0) *nbits = (end + 7) & ~7ll;
}
