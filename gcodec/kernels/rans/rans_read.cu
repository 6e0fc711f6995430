// The reader of rANS blocks: a warp for each run of symbols in the seek table, a lane for each
// state; or one warp for all blocks, where there is no table.
#include "kernels/numeric/scan.cuh"
#include "kernels/quantize/trellis.cuh"

static const u32 LEAST_STATE = 1u << 16;
static const int THREADS = 128;
static const int SLOTS = 1 << 15;
static const int SYMBOLS = 256;
static const int STAGED = 512;  // classes of a warp in shared memory
static const i64 PER_RUN = 64;  // a status is the number of the run times this, plus an error
static const int TRUNCATED = 1, LOW_HEAD = 2, OTHER_END = 3, BROKEN = 4;

// The next words of a string, of which registers hold 96: three for each lane.
struct Words {
    const u8* data;
    i64 end;   // the byte where they end
    i64 from;  // the byte of the first word in registers
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
    // The word `ahead` < 64 of the first, which may differ between lanes; all lanes call it.
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

// One model of all symbols, whose tables are in shared memory.
struct OneModel {
    const u8* symbol_of;
    const u32* pair_of;

    __device__ __forceinline__ void load(i64, i64) {}
    __device__ __forceinline__ void stage() {}
    __device__ __forceinline__ u32 of(i32) const { return 0; }
    __device__ __forceinline__ u32 with(u32, u32) const { return 0; }
    __device__ __forceinline__ u32 symbol(u32, u32 slot) const { return symbol_of[slot]; }
    __device__ __forceinline__ u32 pair(u32, u32 symbol) const { return pair_of[symbol]; }
};

// A model for each class; their tables follow each other, and classes are below 64. With a trellis
// each quantizer has models for all classes, and each lane follows a path in each run of the trellis.
struct Classes {
    const u8* classes;
    const u8* symbol_of;
    const u32* pair_of;
    i32 log2_total;
    bool trellis;
    u8* staged;  // of the warp, in shared memory
    u32 coming[STAGED / WARP] = {};

    // Loads the classes from `first` on, so that they arrive while others are in use.
    __device__ __forceinline__ void load(i64 first, i64 stop) {
#pragma unroll
        for (int k = 0; k < STAGED / WARP; ++k) {
            i64 i = first + k * WARP + threadIdx.x % WARP;
            coming[k] = i < stop ? classes[i] : 0;
        }
    }
    // Moves the loaded classes to shared memory.
    __device__ __forceinline__ void stage() {
        __syncwarp();  // all lanes have read the preceding ones
#pragma unroll
        for (int k = 0; k < STAGED / WARP; ++k)
            staged[k * WARP + threadIdx.x % WARP] = (u8)coming[k];
        __syncwarp();
    }
    __device__ __forceinline__ u32 of(i32 k) const { return k < STAGED ? staged[k] : 0; }
    __device__ __forceinline__ u32 with(u32 number, u32 path) const {
        return trellis ? number | above_class(path) : number;
    }
    __device__ __forceinline__ u32 symbol(u32 number, u32 slot) const {
        return symbol_of[number << log2_total | slot];
    }
    __device__ __forceinline__ u32 pair(u32 number, u32 symbol) const {
        return pair_of[number << 8 | symbol];
    }
};

// `offsets` holds the bit of each run from `origin` on and the bit after the last run; `states` holds
// the states of the 2, 8 or 32 lanes before each run, except for runs that begin a block of 2^18,
// whose states are in the data. If `chained`, the kernel verifies both; otherwise only the first
// offset is set, and one warp writes the others. The string begins with a whole byte, and all offsets
// are whole words from there. One warp reads `together` consecutive runs.
template <class Model>
__device__ __forceinline__ void read_runs(
    Model& model, int lanes, const u8* data, i64 end, i64* offsets, i64 origin, u32* states,
    i64 n, i32 log2_block, i32 log2_run, i64 together, i32 chained, i32 log2_total, u8* out,
    i64* status
) {
    int lane = threadIdx.x % WARP;
    bool active = lane < lanes;
    i64 warp = blockIdx.x * (i64)(THREADS / WARP) + threadIdx.x / WARP;
    i64 size = 1ll << log2_run, runs = (n + size - 1) / size;
    i64 run = chained ? warp * together : 0;
    i64 last = chained && run + together < runs ? run + together : runs;
    if (run >= runs || (!chained && warp)) return;  // whole warps
    i64 inside = (1ll << (log2_block - log2_run)) - 1;  // of the number of a run
    u32 mask = (1u << log2_total) - 1, x = LEAST_STATE, path = 0;
    Words words = {data, end, 0, 0, 0, 0};
    i64 place = (origin + offsets[run]) >> 3;  // byte of the next word
    for (; run < last; ++run) {  // below runs
        int wrong = place < 0 || place > end ? BROKEN : 0;
        bool fresh = (run & inside) == 0;
        if (fresh && !wrong) {
            if (place + 4 * lanes > end) {  // the states before the words of a block
                wrong = TRUNCATED;
            } else {
                if (active) {
                    x = 0;
                    for (int k = 0; k < 4; ++k) x |= (u32)data[place + 4 * lane + k] << 8 * k;
                }
                place += 4 * lanes;
                if (__any_sync(EVERY_LANE, x < LEAST_STATE)) wrong = LOW_HEAD;
            }
        } else if (chained && !fresh && active) {
            x = states[run * lanes + lane];
        }
        i64 start = run * size, stop = start + size < n ? start + size : n;
        if (!wrong) {
            words.seek(place);
            model.load(start, stop);
        }
        int taken = 0;  // words in registers, below 32
        for (i64 first = start; first < stop && !wrong; first += STAGED) {
            model.stage();
            model.load(first + STAGED, stop);
            int count = (int)min((i64)STAGED, stop - first), used = 0;
            int left = (int)min((end - place) >> 1, (i64)1 << 30);  // words, at least 0
            u32 next = model.of(lane);
            if ((first & (RUN - 1)) == 0) path = 0;
            for (int i = 0; i < count && !wrong; i += lanes) {  // the same for all lanes
                bool need = false;
                u32 number = model.with(next, path);
                next = model.of(i + lanes + lane);
                if (active && i + lane < count) {
                    u32 slot = x & mask, symbol = model.symbol(number, slot);
                    u32 pair = model.pair(number, symbol);
                    out[first + i + lane] = (u8)symbol;
                    path = path_after(path, symbol);
                    x = (pair & 0xFFFF) * (x >> log2_total) + slot - (pair >> 16);
                    need = x < LEAST_STATE;
                }
                u32 needed = __ballot_sync(EVERY_LANE, need);
                // At most 31 words were taken, and 31 lanes come first.
                u32 word = words.at(taken + __popc(needed & ((1u << lane) - 1)));
                if (need) x = x << 16 | word;
                taken += __popc(needed);
                used += __popc(needed);
                if (used > left) wrong = TRUNCATED;
                if (taken >= WARP) {
                    words.go_on();
                    taken -= WARP;
                }
            }
            place += 2 * used;
        }
        bool whole = ((run + 1) & inside) == 0 || stop == n;
        if (!wrong && whole && __any_sync(EVERY_LANE, x != LEAST_STATE)) wrong = OTHER_END;
        i64 after = 8 * place - origin;
        if (!wrong && chained) {
            // run + 1 < runs where the states are read
            bool differs = !whole && active && x != states[(run + 1) * lanes + lane];
            if (__any_sync(EVERY_LANE, differs || after != offsets[run + 1])) wrong = BROKEN;
        }
        if (wrong) {
            if (lane == 0) atomicMin(status, PER_RUN * run + wrong);
            return;
        }
        if (!chained) {
            if (lane == 0) offsets[run + 1] = after;
            if (!whole && active) states[(run + 1) * lanes + lane] = x;
        }
    }
}

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
    OneModel model = {symbol_of, pair_of};
    read_runs(
        model, WARP, data, end, offsets, origin, states, n, log2_block, log2_run, 1, chained,
        log2_total, out, status
    );
}

extern "C" __global__ void __launch_bounds__(THREADS, 8) read_classed(
    const u8* data, i64 end, i64* offsets, i64 origin, u32* states, i64 n, i32 log2_block,
    i32 log2_run, i32 chained, i32 log2_total, const u8* slots, const u32* pairs, const u8* classes,
    i32 lanes, i64 together, i32 trellis, u8* out, i64* status
) {
    __shared__ u8 staged[THREADS / WARP * STAGED];
    u8* own = staged + threadIdx.x / WARP * STAGED;
    Classes model = {classes, slots, pairs, log2_total, trellis != 0, own};
    read_runs(
        model, lanes, data, end, offsets, origin, states, n, log2_block, log2_run, together, chained,
        log2_total, out, status
    );
}
