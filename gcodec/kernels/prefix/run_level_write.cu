// The writer of units: for each symbol that is not 0, how far it lies behind the one before it, and
// it. Tiles of 4096 symbols are looked at three times: for how many units they have, and where the
// last is; for the bits of these, when it is known where the last one before each tile is; and to
// write them, when it is known where each tile begins.
#include "kernels/prefix/codewords.cuh"
#include "kernels/prefix/symbols.cuh"

static const int NEAR = 1024;    // gaps below it have their word in a table
static const int SINGLES = 256;  // symbols that may have theirs there
static const u64 NBITS = 63;     // of an entry, which is word * 64 + length; 0 where there is none

// Behind the entries of a table is the parameter of the rule for what has no word there.

struct Unit {
    Code gap, symbol;
    const u64 *gaps, *singles;

    __device__ __forceinline__ i64 nbits(u64 distance, u64 value) const {
        u64 before = distance < NEAR ? gaps[distance] : 0;
        u64 word = value < SINGLES ? singles[value] : 0;
        return (before ? (i64)(before & NBITS) : spelled_nbits(gap, distance))
            + (word ? (i64)(word & NBITS) : spelled_nbits(symbol, value));
    }

    __device__ __forceinline__ void put(u64 distance, u64 value, BitWriter<true>& out) const {
        u64 before = distance < NEAR ? gaps[distance] : 0;
        u64 word = value < SINGLES ? singles[value] : 0;
        if (before) out.put((u32)(before >> 6), (int)(before & NBITS));
        else spell(gap, distance, out);
        if (word) out.put((u32)(word >> 6), (int)(word & NBITS));
        else spell(symbol, value, out);
    }
};

// Bits of the units of a thread. Not inlined, as three kernels call it.
static __device__ __noinline__ i64 nbits_of(
    const Share& own, i64 start, i64 last, const Unit& unit
) {
    i64 nbits = 0;
#pragma unroll 1
    for (int k = 0; k < EACH; ++k) {
        u32 symbol = own[k];
        if (!symbol) continue;
        nbits += unit.nbits((u64)(start + k + 1 - last), symbol);
        last = start + k + 1;
    }
    return nbits;
}

// `counts` gets the units of each tile, `lasts` the position of its last, from 1 on, or 0.
extern "C" __global__ void __launch_bounds__(THREADS)
count_units(const u8* symbols, i32 width, i64 n, i64* counts, i64* lasts) {
    __shared__ i64 scratch[THREADS / WARP];
    i64 start = (i64)blockIdx.x * TILE + threadIdx.x * EACH, number = 0, last = 0;
    Share own(symbols, width, n, start);  // 0 behind the last one
#pragma unroll 1
    for (int k = 0; k < EACH; ++k) {
        if (!own[k]) continue;
        number += 1;
        last = start + k + 1;
    }
    i64 numbers = scan_block<Sum>(number, scratch).total;
    i64 position = scan_block<Max>(last, scratch).total;
    if (threadIdx.x == 0) {  // one of each for each block
        counts[blockIdx.x] = numbers;
        lasts[blockIdx.x] = position;
    }
}

// `lengths` gets the bits of the units of each tile; `lasts` tells the position of the last one
// before it.
extern "C" __global__ void __launch_bounds__(THREADS, 4) measure_units(
    const u8* symbols, i32 width, i64 n, const u64* gaps, i32 gap_rule, u64 gap_shift,
    const u64* singles, i32 rule, i32 mapping, u64 shift,
    const i64* lasts, i64* lengths
) {
    __shared__ i64 scratch[THREADS / WARP];
    Unit unit = {{gap_rule, PLAIN, gap_shift, gaps[NEAR], 0},
                 {rule, mapping, shift, singles[SINGLES], 0}, gaps, singles};
    i64 start = (i64)blockIdx.x * TILE + threadIdx.x * EACH;
    Share own(symbols, width, n, start);
    i64 last = last_before(own, start, lasts[blockIdx.x], scratch);
    i64 nbits = scan_block<Sum>(nbits_of(own, start, last, unit), scratch).total;
    if (threadIdx.x == 0) lengths[blockIdx.x] = nbits;
}

// Where blocks of `every` units begin, of which there is room for `blocks`: `marks` gets the bit of
// each, and behind these the position of the last unit before it. `offsets` and `numbers` tell the
// bit of each tile, and the units before it.
extern "C" __global__ void __launch_bounds__(THREADS, 4) mark_units(
    const u8* symbols, i32 width, i64 n, const u64* gaps, i32 gap_rule, u64 gap_shift,
    const u64* singles, i32 rule, i32 mapping, u64 shift,
    const i64* lasts, const i64* offsets, const i64* numbers, i64 every, i64* marks, i64 blocks
) {
    __shared__ i64 scratch[THREADS / WARP];
    i64 number = numbers[blockIdx.x], until = numbers[blockIdx.x + 1], some = 0;
    if ((number + every - 1) / every * every >= until) return;  // all threads do
    Unit unit = {{gap_rule, PLAIN, gap_shift, gaps[NEAR], 0},
                 {rule, mapping, shift, singles[SINGLES], 0}, gaps, singles};
    i64 start = (i64)blockIdx.x * TILE + threadIdx.x * EACH;
    Share own(symbols, width, n, start);
    i64 last = last_before(own, start, lasts[blockIdx.x], scratch);
#pragma unroll 1
    for (int k = 0; k < EACH; ++k) some += own[k] != 0;
    i64 nbits = nbits_of(own, start, last, unit);
    number += scan_block<Sum>(some, scratch).before;
    i64 at = offsets[blockIdx.x] + scan_block<Sum>(nbits, scratch).before;
#pragma unroll 1
    for (int k = 0; k < EACH; ++k) {
        u32 symbol = own[k];
        if (!symbol) continue;
        i64 b = number / every;
        if (number % every == 0 && b < blocks) {
            marks[b] = at;
            marks[blocks + b] = last;
        }
        at += unit.nbits((u64)(start + k + 1 - last), symbol);
        last = start + k + 1;
        number += 1;
    }
}

// `out` has `size` words, zero but for those bits that are before the first tile; `offsets` tells the
// bit of each, and where the last ends. Where there are no bits in all, another string was chosen.
extern "C" __global__ void __launch_bounds__(THREADS, 4) write_units(
    const u8* symbols, i32 width, i64 n, const u64* gaps, i32 gap_rule, u64 gap_shift,
    const u64* singles, i32 rule, i32 mapping, u64 shift,
    const i64* lasts, const i64* offsets, u32* out, i64 size
) {
    __shared__ i64 scratch[THREADS / WARP];
    if (!offsets[gridDim.x]) return;  // all threads do
    Unit unit = {{gap_rule, PLAIN, gap_shift, gaps[NEAR], 0},
                 {rule, mapping, shift, singles[SINGLES], 0}, gaps, singles};
    i64 start = (i64)blockIdx.x * TILE + threadIdx.x * EACH;
    Share own(symbols, width, n, start);
    i64 last = last_before(own, start, lasts[blockIdx.x], scratch);
    i64 nbits = nbits_of(own, start, last, unit);
    i64 at = offsets[blockIdx.x] + scan_block<Sum>(nbits, scratch).before;
    BitWriter<true> writer(out, size, at);
#pragma unroll 1
    for (int k = 0; k < EACH; ++k) {
        u32 symbol = own[k];
        if (!symbol) continue;
        unit.put((u64)(start + k + 1 - last), symbol, writer);
        last = start + k + 1;
    }
    writer.finish();
}
