// The writer of run–level pairs: for each nonzero symbol, its distance from the preceding one, and the
// symbol. Kernels pass over tiles of 4096 symbols three times: to count the pairs and locate the last;
// to measure the pairs, when the position before each tile is known; and to write them, when the bit of
// each tile is known.
#include "kernels/prefix/codewords.cuh"
#include "kernels/prefix/symbols.cuh"

static const int NEAR = 1024;    // gaps below it have their word in a table
static const int SINGLES = 256;  // symbols that may have theirs there
static const u64 NBITS = 63;     // mask of the length in an entry: word * 64 + length, or 0

// The parameter of the rule follows the entries of a table; the rule encodes all other numbers.

struct Pair {
    Code gap, symbol;
    const u64 *gaps, *singles;

    __device__ __forceinline__ Pair(
        const u64* gap_table, i32 gap_rule, u64 gap_shift, const u64* table, i32 rule, i32 mapping,
        u64 shift
    ) : gap{gap_rule, PLAIN, gap_shift, gap_table[NEAR], 0},
        symbol{rule, mapping, shift, table[SINGLES], 0}, gaps(gap_table), singles(table) {}

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

// Number of bits of the pairs of a thread. Not inlined, as three kernels call it.
static __device__ __noinline__ i64 nbits_of(
    const Share& own, i64 start, i64 last, const Pair& pair
) {
    i64 nbits = 0;
#pragma unroll 1
    for (int k = 0; k < EACH; ++k) {
        u32 symbol = own[k];
        if (!symbol) continue;
        nbits += pair.nbits((u64)(start + k + 1 - last), symbol);
        last = start + k + 1;
    }
    return nbits;
}

// `counts` receives the number of pairs of each tile, `lasts` the position of the last, from 1, or 0.
extern "C" __global__ void __launch_bounds__(THREADS)
count_pairs(const u8* symbols, i32 width, i64 n, i64* counts, i64* lasts) {
    __shared__ i64 scratch[THREADS / WARP];
    i64 start = (i64)blockIdx.x * TILE + threadIdx.x * EACH, number = 0, last = 0;
    Share own(symbols, width, n, start);  // 0 after the last symbol
#pragma unroll 1
    for (int k = 0; k < EACH; ++k) {
        if (!own[k]) continue;
        number += 1;
        last = start + k + 1;
    }
    i64 numbers = scan_block<Sum>(number, scratch).total;
    i64 position = scan_block<Max>(last, scratch).total;
    if (threadIdx.x == 0) {
        counts[blockIdx.x] = numbers;
        lasts[blockIdx.x] = position;
    }
}

// `lengths` receives the number of bits of each tile; `lasts` holds the position of the pair before it.
extern "C" __global__ void __launch_bounds__(THREADS, 4) measure_pairs(
    const u8* symbols, i32 width, i64 n, const u64* gaps, i32 gap_rule, u64 gap_shift,
    const u64* singles, i32 rule, i32 mapping, u64 shift,
    const i64* lasts, i64* lengths
) {
    __shared__ i64 scratch[THREADS / WARP];
    Pair pair(gaps, gap_rule, gap_shift, singles, rule, mapping, shift);
    i64 start = (i64)blockIdx.x * TILE + threadIdx.x * EACH;
    Share own(symbols, width, n, start);
    i64 last = last_before(own, start, lasts[blockIdx.x], scratch);
    i64 nbits = scan_block<Sum>(nbits_of(own, start, last, pair), scratch).total;
    if (threadIdx.x == 0) lengths[blockIdx.x] = nbits;
}

// For each of up to `blocks` blocks of `block_size` pairs, `marks` receives the bit of its begin; after
// all these, the position of the preceding pair. `offsets` and `numbers` hold the bit of each tile, and
// the number of pairs before it.
extern "C" __global__ void __launch_bounds__(THREADS, 4) mark_pairs(
    const u8* symbols, i32 width, i64 n, const u64* gaps, i32 gap_rule, u64 gap_shift,
    const u64* singles, i32 rule, i32 mapping, u64 shift,
    const i64* lasts, const i64* offsets, const i64* numbers, i64 block_size, i64* marks, i64 blocks
) {
    __shared__ i64 scratch[THREADS / WARP];
    i64 number = numbers[blockIdx.x], until = numbers[blockIdx.x + 1], count = 0;
    if ((number + block_size - 1) / block_size * block_size >= until) return;  // all threads do
    Pair pair(gaps, gap_rule, gap_shift, singles, rule, mapping, shift);
    i64 start = (i64)blockIdx.x * TILE + threadIdx.x * EACH;
    Share own(symbols, width, n, start);
    i64 last = last_before(own, start, lasts[blockIdx.x], scratch);
#pragma unroll 1
    for (int k = 0; k < EACH; ++k) count += own[k] != 0;
    i64 nbits = nbits_of(own, start, last, pair);
    number += scan_block<Sum>(count, scratch).before;
    i64 at = offsets[blockIdx.x] + scan_block<Sum>(nbits, scratch).before;
#pragma unroll 1
    for (int k = 0; k < EACH; ++k) {
        u32 symbol = own[k];
        if (!symbol) continue;
        i64 b = number / block_size;
        if (number % block_size == 0 && b < blocks) {
            marks[b] = at;
            marks[blocks + b] = last;
        }
        at += pair.nbits((u64)(start + k + 1 - last), symbol);
        last = start + k + 1;
        number += 1;
    }
}

// `offsets` holds the bit of each tile in `out`, and of the end. `out` has `size` words, zero except for
// bits before the first tile. An end of 0 means that another string was chosen.
extern "C" __global__ void __launch_bounds__(THREADS, 4) write_pairs(
    const u8* symbols, i32 width, i64 n, const u64* gaps, i32 gap_rule, u64 gap_shift,
    const u64* singles, i32 rule, i32 mapping, u64 shift,
    const i64* lasts, const i64* offsets, u32* out, i64 size
) {
    __shared__ i64 scratch[THREADS / WARP];
    if (!offsets[gridDim.x]) return;  // all threads do
    Pair pair(gaps, gap_rule, gap_shift, singles, rule, mapping, shift);
    i64 start = (i64)blockIdx.x * TILE + threadIdx.x * EACH;
    Share own(symbols, width, n, start);
    i64 last = last_before(own, start, lasts[blockIdx.x], scratch);
    i64 nbits = nbits_of(own, start, last, pair);
    i64 at = offsets[blockIdx.x] + scan_block<Sum>(nbits, scratch).before;
    BitWriter<true> writer(out, size, at);
#pragma unroll 1
    for (int k = 0; k < EACH; ++k) {
        u32 symbol = own[k];
        if (!symbol) continue;
        pair.put((u64)(start + k + 1 - last), symbol, writer);
        last = start + k + 1;
    }
    writer.finish();
}
