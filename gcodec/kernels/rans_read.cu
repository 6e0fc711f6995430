// The reader of rANS blocks: a warp for each run of symbols that the seek table tells, a lane for
// each state; or one warp for all blocks, where there is no table.
#include "scan.cuh"

static const u32 LEAST_STATE = 1u << 16;
static const int HEAD = 4 * WARP;  // bytes of the states before the words of a block
static const int THREADS = 128;
static const int SLOTS = 1 << 15;
static const int SYMBOLS = 256;
static const i64 LEFT = 64;  // a status is 64 times the run, plus what is wrong
static const int TRUNCATED = 1, LOW_HEAD = 2, OTHER_END = 3, BROKEN = 4;

// The next words of a string, those of 96 in registers: three for each lane.
struct Words {
    const u8* data;
    i64 end;   // the byte where they end
    i64 from;  // the byte of the first that is held
    u32 first, second, third;

    __device__ __forceinline__ u32 load(i64 word) const {
        i64 at = from + 2 * (word + (threadIdx.x % WARP));
        if (at < 0 || at + 2 > end) return 0;
        return data[at] | (u32)data[at + 1] << 8;
    }
    __device__ __forceinline__ void seek(i64 at) {
        from = at;
        first = load(0);
        second = load(WARP);
        third = load(2 * WARP);
    }
    // The word `ahead` < 64 of the first, for each lane another; all lanes call it.
    __device__ __forceinline__ u32 at(int ahead) const {
        u32 one = __shfl_sync(EVERY_LANE, first, ahead & 31);
        u32 two = __shfl_sync(EVERY_LANE, second, ahead & 31);
        return ahead < WARP ? one : two;
    }
    __device__ __forceinline__ void go_on() {
        from += 2 * WARP;
        first = second;
        second = third;
        third = load(2 * WARP);
    }
};

// `offsets` tells the bit of each run from `origin` on, and where the last ends, and `states` those
// of the lanes before each, but for runs that begin a block of 2^18, whose states are in the data.
// They are known and checked if `chained`; else only the first offset is, and one warp finds the
// others. All are words: the string begins with a byte.
extern "C" __global__ void __launch_bounds__(THREADS) read_blocks(
    const u8* data, i64 end, i64* offsets, i64 origin, u32* states, i64 n, i32 log2_block,
    i32 log2_run, i32 chained, i32 log2_total, const u8* slots, const u32* pairs, u8* out,
    i64* status
) {
    __shared__ u8 symbol_of[SLOTS];
    __shared__ u32 pair_of[SYMBOLS];
    for (int k = threadIdx.x; k < 1 << log2_total; k += THREADS) symbol_of[k] = slots[k];
    for (int k = threadIdx.x; k < SYMBOLS; k += THREADS) pair_of[k] = pairs[k];
    __syncthreads();
    int lane = threadIdx.x % WARP;
    i64 warp = blockIdx.x * (i64)(THREADS / WARP) + threadIdx.x / WARP;
    i64 size = 1ll << log2_run, count = (n + size - 1) / size;
    i64 run = chained ? warp : 0, last = chained ? run + 1 : count;
    if (run >= count || (!chained && warp)) return;  // whole warps
    i64 inside = (1ll << (log2_block - log2_run)) - 1;  // of the number of a run
    u32 mask = (1u << log2_total) - 1, x = LEAST_STATE;
    Words words = {data, end, 0, 0, 0, 0};
    i64 place = (origin + offsets[run]) >> 3;  // the byte of the next word
    for (; run < last; ++run) {  // below count
        int wrong = place < 0 || place > end ? BROKEN : 0;
        bool fresh = (run & inside) == 0;
        if (fresh && !wrong) {
            if (place + HEAD > end) {
                wrong = TRUNCATED;
            } else {
                x = 0;
                for (int k = 0; k < 4; ++k) x |= (u32)data[place + 4 * lane + k] << 8 * k;
                place += HEAD;
                if (__any_sync(EVERY_LANE, x < LEAST_STATE)) wrong = LOW_HEAD;
            }
        } else if (chained && !fresh) {
            x = states[run * WARP + lane];
        }
        i64 i = run * size, stop = i + size < n ? i + size : n;
        if (!wrong) words.seek(place);
        for (; i < stop && !wrong; i += WARP) {  // the same for all lanes
            bool some = i + lane < stop, need = false;
            if (some) {
                u32 slot = x & mask, symbol = symbol_of[slot], pair = pair_of[symbol];
                out[i + lane] = (u8)symbol;
                x = (pair & 0xFFFF) * (x >> log2_total) + slot - (pair >> 16);
                need = x < LEAST_STATE;
            }
            u32 needed = __ballot_sync(EVERY_LANE, need);
            int ahead = (int)((place - words.from) >> 1) + __popc(needed & ((1u << lane) - 1));
            u32 word = words.at(ahead);  // at most 31 held ones were taken, and 31 are before it
            if (need) x = x << 16 | word;
            place += 2 * __popc(needed);
            if (place > end) wrong = TRUNCATED;
            if (place - words.from >= 2 * WARP) words.go_on();
        }
        bool whole = ((run + 1) & inside) == 0 || stop == n;
        if (!wrong && whole && __any_sync(EVERY_LANE, x != LEAST_STATE)) wrong = OTHER_END;
        i64 behind = 8 * place - origin;
        if (!wrong && chained) {
            bool other = !whole && x != states[(run + 1) * WARP + lane];  // run + 1 < count
            if (__any_sync(EVERY_LANE, other || behind != offsets[run + 1])) wrong = BROKEN;
        }
        if (wrong) {
            if (lane == 0) atomicMin(status, LEFT * run + wrong);
            return;
        }
        if (!chained) {
            if (lane == 0) offsets[run + 1] = behind;
            if (!whole) states[(run + 1) * WARP + lane] = x;
        }
    }
}
