// The reader of units: each thread reads a block of them, from where the seek table says that it
// begins; or one thread all, where there is no table. What it tells of a unit is its symbol, and
// its position, from 1 on; `run_level_place.cu` writes what these stand for.
#include "kernels/prefix/codewords.cuh"

static const int WINDOW = 12;
static const int GAP_WINDOW = 16;
static const i64 LEFT = 64;  // a status is 64 times the bit, plus 1, 2 or 3 for what is wrong
static const i64 FARTHEST = 0x4000000000000000ll;  // position

struct String {
    const u8* data;
    i64 nbytes, end;  // bit where the string ends, at most 8 * nbytes
    const u32 *gaps, *singles;
    Code gap, symbol;
};

// Read a number by a table of the next bits, or by its rule; return the next bit, or what is wrong.
__device__ __forceinline__ i64 read_one(
    const String& from, BitReader& bits, const u32* table, int window, const Code& code, u64* value
) {
    bits.fill();
    i64 at = bits.at();
    u32 found = table[bits.window >> (64 - window)];
    int nbits = (int)(found & 63);
    if (found && at + nbits <= from.end) {
        *value = found >> 6;
        bits.skip(nbits);
        return at + nbits;
    }
    i64 after = read_symbol(code, from.data, from.nbytes, at, from.end, value);
    if (after >= 0) bits.seek(after);
    return after;
}

// Read up to `most` units from bit `at` on, up to bit `stop`; return the bit behind them, or what
// is wrong. `last` is the position of the one before, and becomes that of the last.
__device__ __forceinline__ i64 read_some(
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
        if (width == 1) symbols[i] = (u8)value;
        else if (width == 2) ((u16*)symbols)[i] = (u16)value;
        else ((u32*)symbols)[i] = (u32)value;
        positions[i] = *last;
    }
    *count = i;
    return at;
}

// `marks` tells the bit of each block of `every` units from `first` on, and where the last ends;
// behind these, the positions of the last unit before each, and of the last. They are known and
// checked if `chained`; else only the first are, and one thread finds the others, and `found` gets
// how many units there are, and how many blocks. `symbols`, of `width` bytes, and `positions` have `room`.
extern "C" __global__ void __launch_bounds__(128, 6) read_units(
    const u8* data, i64 nbytes, i64 end, i64* marks, i64 first, i64 blocks, i64 every,
    i32 chained, i64 room, const u32* gaps, i32 gap_rule, u64 gap_shift, u64 gap_parameter,
    u64 farthest, const u32* singles, i32 rule, i32 mapping, u64 shift, u64 parameter, u64 top,
    i32 width, u8* symbols, i64* positions, i64* found, i64* status
) {
    String from = {data, nbytes, end, gaps, singles,
                   {gap_rule, PLAIN, gap_shift, gap_parameter, farthest},
                   {rule, mapping, shift, parameter, top}};
    i64* lasts = marks + blocks + 1;
    i64 b = chained ? GCODEC_FIRST : 0, behind = chained ? b + 1 : blocks;
    if (b >= blocks || (!chained && GCODEC_FIRST != 0)) return;
    i64 at = first + marks[b], last = lasts[b], number = b * every;
    for (; b < behind && (chained || at < from.end); ++b) {  // below blocks
        i64 begin = at, stop = chained ? first + marks[b + 1] : from.end, count = 0;
        i64 most = room - number < every ? room - number : every;
        bool inside = begin >= 0 && begin <= stop && stop <= from.end && most >= 0 && last >= 0;
        at = BROKEN;
        if (inside)
            at = read_some(from, begin, stop, most, &last, &count, width,
                           symbols + width * number, positions + number);
        number += count;
        bool full = count == every || (b + 1 == blocks && count > 0);
        if (at >= 0 && chained && (at != stop || last != lasts[b + 1] || !full)) at = BROKEN;
        if (at < 0) {
            atomicMin(status, LEFT * (begin < 0 ? 0 : begin) - at);
            return;
        }
        if (!chained) {
            marks[b + 1] = at - first;
            lasts[b + 1] = last;
        }
    }
    if (behind == blocks) {  // the thread of the last one
        found[0] = number;
        found[1] = b;
    }
}
