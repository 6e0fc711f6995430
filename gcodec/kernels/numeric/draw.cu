// Twin of draw.py: random draws of distinct positions, marked in a bitmap and listed.
#include "kernels/bits/bit_list.cuh"
#include "kernels/numeric/philox.cuh"

static const u64 SELECTION = 1;  // stream of random words

// The state: number of distinct draws so far, number of the next draw, and newly marked draws.
static const int DISTINCT = 0, AT = 1, NEW = 2;

// Marks as many draws as are missing of `count`. Whole warps call it; marks: one bit for each of n
// positions.
__device__ __forceinline__ void mark_missing(u64 seed, u64 n, i64 count, u64* state, u32* marks) {
    u64 at = state[AT], end = at + (u64)count - state[DISTINCT];
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
    state[AT] += (u64)count - state[DISTINCT];
    state[DISTINCT] += state[NEW];
    state[NEW] = 0;
}

extern "C" __global__ void __launch_bounds__(256)
    mark_draws(u64 seed, u64 n, i64 count, u64* state, u32* marks) {
    mark_missing(seed, n, count, state, marks);
}

extern "C" __global__ void go_on(i64 count, u64* state) {
    // One thread, after mark_draws.
    count_missing(count, state);
}

extern "C" __global__ void __launch_bounds__(256)
    mark_rest(u64 seed, u64 n, i64 count, u64* state, u32* marks) {
    // One block repeats until no draw is missing, so the host need not check the state.
    while (state[DISTINCT] < (u64)count) {  // the same for all threads
        mark_missing(seed, n, count, state, marks);
        __syncthreads();
        if (threadIdx.x == 0) count_missing(count, state);
        __syncthreads();
    }
}

// The marks of 32 positions below n, or their complement, the first position highest.
__device__ __forceinline__ u32 marked(const u32* marks, i64 w, i64 n, i32 complement) {
    u32 word = complement ? ~marks[w] : marks[w];
    i64 left = n - 32 * w;
    return __brev(left < 32 ? word & ((1u << left) - 1) : word);
}

extern "C" __global__ void __launch_bounds__(256)
    count_marks(const u32* __restrict__ marks, i64 words, i64 n, i32 complement,
                i64* __restrict__ counts) {
    count_bits(words, counts, [&](i64 w) { return marked(marks, w, n, complement); });
}

extern "C" __global__ void __launch_bounds__(256)
    list_marks(const u32* __restrict__ marks, i64 words, i64 n, i32 complement,
               const i64* __restrict__ before, i64* __restrict__ out, i64 room) {
    list_bits(
        words, before, [&](i64 w) { return marked(marks, w, n, complement); },
        [&](i64 at, i64 w, int bit) {
            if (at < room) out[at] = 32 * w + bit;
        }
    );
}
