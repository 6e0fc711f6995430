// The writer of rANS blocks: a warp for each block of 2^18 symbols, a lane for each state. A warp goes
// from the last symbol to the first and fills its slot from the end backwards. When the number of
// words of each block is known, another kernel moves them to their place in the string.
#include "kernels/numeric/scan.cuh"

static const u32 LEAST_STATE = 1u << 16;
static const int THREADS = 256;
static const int STAGED = 256;  // symbols in shared memory

// For the i-th run of 2^log2_run symbols, a multiple of 32, `words` receives the number of words from
// its first to the end of its block, and `snapshots` the states before it. A slot has `room` words: one
// for each symbol of a block, and two for each of 2, 8 or 32 states. `sizes` receives the used bits of
// each slot, 0 for blocks after the last of n symbols. All symbols have a frequency. Symbols with
// classes have 16 bits, the class above the symbol, and the tables of classes follow each other.
//
// A warp has nothing else to do while it waits, so it loads STAGED symbols at once, long before it
// codes them, and the table entries of a symbol one step before.
template <class Symbol>
__device__ __forceinline__ void write_states(
    const Symbol* symbols, i64 n, i32 lanes, i32 log2_block, i32 log2_run, u32 log2_total,
    const u64* reciprocals, const u32* pairs, u16* slots, i64 room, i64* sizes, i64* words,
    u32* snapshots, Symbol* staged
) {
    i64 begin = (i64)blockIdx.x << log2_block;
    if (begin >= n) {
        if (threadIdx.x == 0) sizes[blockIdx.x] = 0;
        return;
    }
    const Symbol* own = symbols + begin;
    i32 lane = threadIdx.x, size = (i32)min((i64)1 << log2_block, n - begin), used = 0;  // words
    u16* end = slots + (blockIdx.x + 1) * room;  // after the slot
    bool active = lane < lanes;
    u32 x = LEAST_STATE, total = 1u << log2_total, coming[STAGED / WARP];
    auto load = [&](i32 first) {
#pragma unroll
        for (i32 k = 0; k < STAGED / WARP; ++k) {
            i32 at = first + k * WARP + lane;
            coming[k] = at < size ? own[at] : 0;
        }
    };
    i32 i = (size - 1) & ~(lanes - 1);  // first symbol of the step
    load(i & ~(STAGED - 1));
    for (i32 first = i & ~(STAGED - 1); first >= 0; first -= STAGED) {
        __syncwarp();  // all lanes have read the preceding symbols
#pragma unroll
        for (i32 k = 0; k < STAGED / WARP; ++k) staged[k * WARP + lane] = (Symbol)coming[k];
        __syncwarp();
        if (first) load(first - STAGED);
        auto symbol_of = [&](i32 at) -> u32 {
            return active && at >= first ? staged[at - first + lane] : 0;
        };
        u32 symbol = symbol_of(i), next = symbol_of(i - lanes);
        u32 next_pair = pairs[symbol];
        u64 next_reciprocal = reciprocals[symbol];
        for (; i >= first; i -= lanes) {
            u32 pair = next_pair, frequency = pair & 0xFFFF;
            u64 reciprocal = next_reciprocal;
            next_pair = pairs[next];
            next_reciprocal = reciprocals[next];
            next = symbol_of(i - 2 * lanes);
            bool coding = active && i + lane < size;
            bool drop = coding && x >> (32 - log2_total) >= frequency;
            u32 dropped = __ballot_sync(EVERY_LANE, drop);
            if (drop) {
                end[-(used + __popc(dropped >> lane))] = (u16)x;
                x >>= 16;
            }
            used += __popc(dropped);
            u32 times = (u32)(x * reciprocal >> 32) >> log2_total;
            if (coding) x += times * (total - frequency) + (pair >> 16);
            if ((i & ((1 << log2_run) - 1)) == 0) {
                i64 run = (begin + i) >> log2_run;  // below their number
                if (active) snapshots[run * lanes + lane] = x;
                if (lane == 0) words[run] = used;
            }
        }
    }
    used += 2 * lanes;
    if (active) {
        end[-used + 2 * lane] = (u16)x;
        end[-used + 2 * lane + 1] = (u16)(x >> 16);
    }
    if (lane == 0) sizes[blockIdx.x] = 16 * (i64)used;
}

extern "C" __global__ void __launch_bounds__(WARP) write_block(
    const u8* symbols, const i64* count, i32 log2_block, i32 log2_run, const i64* log2_total,
    const u64* reciprocals, const u32* pairs, u16* slots, i64 room, i64* sizes, i64* words, u32* snapshots
) {
    // 256 reciprocals and pairs, which are copied to shared memory
    __shared__ u8 staged[STAGED];
    __shared__ u64 own_reciprocals[256];
    __shared__ u32 own_pairs[256];
#pragma unroll 1
    for (int k = threadIdx.x; k < 256; k += WARP) {
        own_reciprocals[k] = reciprocals[k];
        own_pairs[k] = pairs[k];
    }
    __syncwarp();
    write_states(
        symbols, *count, WARP, log2_block, log2_run, (u32)*log2_total, own_reciprocals, own_pairs, slots, room,
        sizes, words, snapshots, staged
    );
}

extern "C" __global__ void __launch_bounds__(WARP) write_classed(
    const u16* symbols, const i64* count, i32 log2_block, const i64* layout, const i64* log2_total,
    const u64* reciprocals, const u32* pairs, u16* slots, i64 room, i64* sizes, i64* words, u32* snapshots
) {
    // 256 reciprocals and pairs of each class; layout: states, and the log2 of the symbols of a run
    __shared__ u16 staged[STAGED + WARP];
    write_states(
        symbols, *count, (i32)layout[0], log2_block, (i32)layout[1], (u32)*log2_total, reciprocals, pairs, slots, room,
        sizes, words, snapshots, staged
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
