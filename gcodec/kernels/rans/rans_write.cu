// The writer of rANS blocks: a warp for each block of 2^18 symbols, a lane for each state. A warp goes
// from the last symbol to the first and fills its slot from the end backwards. When the number of
// words of each block is known, another kernel moves them to their place in the string.
#include "kernels/numeric/scan.cuh"

static const u32 LEAST_STATE = 1u << 16;
static const int THREADS = 256;

// For the i-th run of 2^log2_run symbols, a multiple of 32, `words` receives the number of words from
// its first to the end of its block, and `snapshots` the states before it. A slot has `room` words: one
// for each symbol of a block, and two for each of 2, 8 or 32 states. `sizes` receives the used bits of
// each slot, 0 for blocks after the last of n symbols. All symbols have a frequency. Symbols with
// classes have 16 bits, the class above the symbol, and the tables of classes follow each other.
template <class Symbol>
__device__ __forceinline__ void write_states(
    const Symbol* symbols, i64 n, i32 lanes, i32 log2_block, i32 log2_run, i32 log2_total,
    const u64* reciprocals, const u32* pairs, u16* slots, i64 room, i64* sizes, i64* words,
    u32* snapshots
) {
    int lane = threadIdx.x;
    bool active = lane < lanes;
    i64 size = 1ll << log2_block, start = blockIdx.x * size;
    i64 stop = start + size < n ? start + size : n;
    u16* end = slots + (blockIdx.x + 1) * room;  // after the slot
    i64 used = 0;  // words, at most one for each symbol
    u32 x = LEAST_STATE, total = 1u << log2_total;
    if (start >= n) {
        if (lane == 0) sizes[blockIdx.x] = 0;
        return;
    }
    i64 i = (stop - 1) & ~(i64)(lanes - 1);  // start is a multiple of 32
    u32 next = active && i + lane < stop ? symbols[i + lane] : 0;
    for (; i >= start; i -= lanes) {
        bool coding = active && i + lane < stop, drop = false;
        u32 symbol = next;
        if (active && i > start) next = symbols[i - lanes + lane];  // prefetched
        u32 pair = pairs[symbol], frequency = pair & 0xFFFF;
        u64 reciprocal = reciprocals[symbol];
        if (coding) drop = x >> (32 - log2_total) >= frequency;
        u32 dropped = __ballot_sync(EVERY_LANE, drop);
        if (drop) {
            end[-used - __popc(dropped >> lane)] = (u16)x;
            x >>= 16;
        }
        used += __popc(dropped);
        if (coding) {
            u32 times = (u32)(x * reciprocal >> (32 + log2_total));
            x += times * (total - frequency) + (pair >> 16);
        }
        if ((i & ((1ll << log2_run) - 1)) == 0) {
            i64 run = i >> log2_run;  // below their number
            if (active) snapshots[run * lanes + lane] = x;
            if (lane == 0) words[run] = used;
        }
    }
    used += 2 * lanes;
    if (active) {
        end[-used + 2 * lane] = (u16)x;
        end[-used + 2 * lane + 1] = (u16)(x >> 16);
    }
    if (lane == 0) sizes[blockIdx.x] = 16 * used;
}

extern "C" __global__ void __launch_bounds__(WARP) write_block(
    const u8* symbols, const i64* count, i32 log2_block, i32 log2_run, const i64* log2_total,
    const u64* reciprocals, const u32* pairs, u16* slots, i64 room, i64* sizes, i64* words, u32* snapshots
) {
    // 256 reciprocals and pairs
    write_states(
        symbols, *count, WARP, log2_block, log2_run, (i32)*log2_total, reciprocals, pairs, slots, room, sizes,
        words, snapshots
    );
}

extern "C" __global__ void __launch_bounds__(WARP) write_classed(
    const u16* symbols, const i64* count, i32 log2_block, const i64* layout, const i64* log2_total,
    const u64* reciprocals, const u32* pairs, u16* slots, i64 room, i64* sizes, i64* words, u32* snapshots
) {
    // 256 reciprocals and pairs of each class; layout: states, and the log2 of the symbols of a run
    write_states(
        symbols, *count, (i32)layout[0], log2_block, (i32)layout[1], (i32)*log2_total, reciprocals, pairs, slots, room,
        sizes, words, snapshots
    );
}

// Move the words of blocks to `out`, which has `nbytes`; `offsets` holds the bit of each block, a
// multiple of 8, and the bit after the last.
extern "C" __global__ void __launch_bounds__(THREADS) move_blocks(
    const u16* slots, i64 room, const i64* offsets, u8* out, i64 nbytes
) {
    i64 b = blockIdx.y;
    i64 begin = offsets[b] >> 3, size = (offsets[b + 1] - offsets[b]) >> 4;  // in words
    const u16* words = slots + (b + 1) * room - size;
    int odd = (int)(begin & 3);  // bytes of a word of `out` before these
    u32* target = (u32*)(out + begin - odd);
    for (i64 w = GCODEC_FIRST; 4 * w < odd + 2 * size; w += GCODEC_STEP) {
        u32 word = 0;
        int filled = 0;  // a bit for each byte
        for (int k = 0; k < 4; ++k) {
            i64 byte = 4 * w + k - odd;
            if (byte < 0 || byte >= 2 * size) continue;
            word |= (u32)(words[byte >> 1] >> 8 * (int)(byte & 1) & 0xFF) << 8 * k;
            filled |= 1 << k;
        }
        if (filled == 15) target[w] = word;
        else
            for (int k = 0; k < 4; ++k) {
                i64 at = begin - odd + 4 * w + k;
                if (filled >> k & 1 && at < nbytes) out[at] = (u8)(word >> 8 * k);
            }
    }
}
