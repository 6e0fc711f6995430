// The reader of run–level pairs: each thread reads a block from its offset in the seek table; without a
// table, one thread reads all blocks. A pair yields its symbol and its position, counted from 1;
// `run_level_place.cu` writes these to a tensor.
#include "kernels/bits/widths.cuh"
#include "kernels/prefix/codewords.cuh"

static const int WINDOW = 12;
static const int GAP_WINDOW = 16;
static const i64 FARTHEST = 0x4000000000000000ll;  // position

struct String {
    const u8* data;
    i64 nbytes, end;  // bit where the string ends, at most 8 * nbytes
    const u32 *gaps, *singles;
    Code gap, symbol;
};

// Reads a number by a table of the next bits, or by its rule; returns the next bit, or an error.
__device__ __forceinline__ i64 read_one(
    const String& from, BitReader& bits, const u32* table, int window, const Code& code, u64* value
) {
    bits.fill();
    i64 at = bits.at();
    u32 entry = table[bits.window >> (64 - window)];
    int nbits = (int)(entry & 63);
    if (entry && at + nbits <= from.end) {
        *value = entry >> 6;
        bits.skip(nbits);
        return at + nbits;
    }
    i64 after = read_symbol(code, from.data, from.nbytes, at, from.end, value);
    if (after >= 0) bits.seek(after);
    return after;
}

// Reads up to `most` pairs from bit `at` to bit `stop`; returns the bit after them, or an error. `last`
// is the position of the preceding pair, and becomes that of the last.
__device__ __forceinline__ i64 read_pairs(
    const String& from, i64 at, i64 stop, i64 most, i64* last, i64* count, i32 width, u8* symbols,
    i64* positions
) {
    BitReader bits(from.data, from.nbytes);
    bits.seek(at);
    i64 i = 0;
    for (; i < most && at < stop; ++i) {  // symbols and positions have room for `most`
        u64 distance = 0, value = 0;
        i64 after = read_one(from, bits, from.gaps, GAP_WINDOW, from.gap, &distance);
        if (after >= 0 && distance > (u64)(FARTHEST - *last)) after = CORRUPT;
        if (after >= 0)
            after = read_one(from, bits, from.singles, WINDOW, from.symbol, &value);
        if (after < 0) {
            at = after;
            break;
        }
        at = after;
        *last += (i64)distance;
        put_symbol(symbols, width, i, (u32)value);
        positions[i] = *last;
    }
    *count = i;
    return at;
}

// `marks` holds the bit, counted from `first`, of each block of `block_size` pairs and of the end; then
// the positions of the pair before each block and of the last pair. If `chained`, the kernel verifies
// them; otherwise only the first of both is set, and one thread writes the others. `counts` receives the
// number of pairs and of blocks. `symbols`, of `width` bytes, and `positions` have `room`.
extern "C" __global__ void __launch_bounds__(128, 6) read_pairs(
    const u8* data, i64 nbytes, i64 end, i64* marks, i64 first, i64 blocks, i64 block_size,
    i32 chained, i64 room, const u32* gaps, i32 gap_rule, u64 gap_shift, u64 gap_parameter,
    u64 farthest, const u32* singles, i32 rule, i32 mapping, u64 shift, u64 parameter, u64 top,
    i32 width, u8* symbols, i64* positions, i64* counts, i64* status
) {
    String from = {data, nbytes, end, gaps, singles,
                   {gap_rule, PLAIN, gap_shift, gap_parameter, farthest},
                   {rule, mapping, shift, parameter, top}};
    i64* lasts = marks + blocks + 1;
    i64 b = chained ? GCODEC_FIRST : 0, upto = chained ? b + 1 : blocks;
    if (b >= blocks || (!chained && GCODEC_FIRST != 0)) return;
    i64 at = first + marks[b], last = lasts[b], number = b * block_size;
    for (; b < upto && (chained || at < from.end); ++b) {  // below blocks
        i64 begin = at, stop = chained ? first + marks[b + 1] : from.end, count = 0;
        i64 most = room - number < block_size ? room - number : block_size;
        bool inside = begin >= 0 && begin <= stop && stop <= from.end && most >= 0 && last >= 0;
        at = BROKEN;
        if (inside)
            at = read_pairs(from, begin, stop, most, &last, &count, width,
                           symbols + width * number, positions + number);
        number += count;
        bool full = count == block_size || (b + 1 == blocks && count > 0);
        if (at >= 0 && chained && (at != stop || last != lasts[b + 1] || !full)) at = BROKEN;
        if (at < 0) {
            atomicMin(status, status_of(begin, at));
            return;
        }
        if (!chained) {
            marks[b + 1] = at - first;
            lasts[b + 1] = last;
        }
    }
    if (upto == blocks) {  // the thread of the last block
        counts[0] = number;
        counts[1] = b;
    }
}
