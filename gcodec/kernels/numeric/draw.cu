// Twin of draw.py: different positions drawn at random, marked in a bitmap and listed.
#include "kernels/bits/bit_list.cuh"
#include "kernels/numeric/philox.cuh"

static const u64 SELECTION = 1;  // the stream

// What kernels hand on: how many are found, the number of the next draw, and how many are new.
static const int FOUND = 0, AT = 1, NEW = 2;

// Marks as many draws as are missing of `count`, by whole warps; marks: a bit for each of n positions.
__device__ __forceinline__ void mark_missing(u64 seed, u64 n, i64 count, u64* state, u32* marks) {
    u64 at = state[AT], end = at + (u64)count - state[FOUND];
    u32 own = 0;
    for (u64 pair = at / 2 + (u64)GCODEC_FIRST; 2 * pair < end; pair += (u64)GCODEC_STEP) {
        Words words = philox(seed, pair, SELECTION);  // of two draws
        for (u64 k = 0; k < 2; ++k) {
            if (2 * pair + k < at || 2 * pair + k >= end) continue;
            u64 u = k ? (u64)words.of[3] << 32 | words.of[2] : (u64)words.of[1] << 32 | words.of[0];
            u64 place = __umul64hi(u, n);  // below n
            u32 bit = 1u << (place & 31);
            own += !(atomicOr(&marks[place >> 5], bit) & bit);
        }
    }
    for (int step = 16; step; step /= 2) own += __shfl_xor_sync(EVERY_LANE, own, step);
    if (threadIdx.x % WARP == 0 && own) atomicAdd(&state[NEW], (u64)own);
}

__device__ __forceinline__ void count_missing(i64 count, u64* state) {
    state[AT] += (u64)count - state[FOUND];
    state[FOUND] += state[NEW];
    state[NEW] = 0;
}

extern "C" __global__ void __launch_bounds__(256)
    mark_draws(u64 seed, u64 n, i64 count, u64* state, u32* marks) {
    mark_missing(seed, n, count, state, marks);
}

extern "C" __global__ void go_on(i64 count, u64* state) {
    // One thread, behind mark_draws.
    count_missing(count, state);
}

extern "C" __global__ void __launch_bounds__(256)
    mark_rest(u64 seed, u64 n, i64 count, u64* state, u32* marks) {
    // One block, until nothing is missing: so nobody has to look whether something is.
    while (state[FOUND] < (u64)count) {  // the same for all threads
        mark_missing(seed, n, count, state, marks);
        __syncthreads();
        if (threadIdx.x == 0) count_missing(count, state);
        __syncthreads();
    }
}

// The marks of 32 positions, or the others, the first highest; none behind n.
__device__ __forceinline__ u32 marked(const u32* marks, i64 w, i64 n, i32 others) {
    u32 word = others ? ~marks[w] : marks[w];
    i64 left = n - 32 * w;
    return __brev(left < 32 ? word & ((1u << left) - 1) : word);
}

extern "C" __global__ void __launch_bounds__(256)
    count_marks(const u32* __restrict__ marks, i64 words, i64 n, i32 others,
                i64* __restrict__ counts) {
    count_bits(words, counts, [&](i64 w) { return marked(marks, w, n, others); });
}

extern "C" __global__ void __launch_bounds__(256)
    list_marks(const u32* __restrict__ marks, i64 words, i64 n, i32 others,
               const i64* __restrict__ before, i64* __restrict__ out, i64 room) {
    list_bits(
        words, before, [&](i64 w) { return marked(marks, w, n, others); },
        [&](i64 at, i64 w, int bit) {
            if (at < room) out[at] = 32 * w + bit;
        }
    );
}
