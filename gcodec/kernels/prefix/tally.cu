// How many symbols and gaps there are of each size: what Rice words are chosen by.
// Blocks of threads go over tiles of 4096 symbols, and add up what they found.
#include "kernels/bits/bits.cuh"
#include "kernels/prefix/symbols.cuh"

static const int SIZES = 64;  // bits of a number, and more
static const int NEAR = 256;  // numbers below it are counted one by one
static const int PACKED = 8;  // those below it by each thread itself

// Counts of numbers below 8, a byte for each: a thread has at most 16 of a tile.
struct Packed {
    u64 counts;

    __device__ __forceinline__ void add(int number, u32* table) {
        if (number < PACKED) counts += 1ull << 8 * number;
        else atomicAdd(table + number, 1u);
    }
    __device__ __forceinline__ void flush(u32* table) {
        for (int k = 0; k < PACKED; ++k) {
            u32 some = (u32)(counts >> 8 * k) & 255;
            if (some) atomicAdd(table + k, some);
        }
    }
};

__device__ __forceinline__ void clear(u32* found, int size) {
    for (int k = threadIdx.x; k < size; k += THREADS) found[k] = 0;
    __syncthreads();
}

__device__ __forceinline__ void add_up(const u32* found, int size, u64* counts) {
    __syncthreads();
    for (int k = threadIdx.x; k < size; k += THREADS)
        if (found[k]) atomicAdd(counts + k, (u64)found[k]);
}

// What Rice codes are made for: 2k − 1 for the level −k and 2k for k, of all symbols; or of those
// whose level is not 0, the level less 1, or how many lie between them and the one before.
enum Numbers { ZIGZAG, LEVELS, GAPS };

// `lasts` tells the position of the last symbol that is not 0 before each tile. `counts` gets how many
// numbers there are of each below NEAR; and behind these, of the others, how many have each bit, and
// in place of the last, which none has, how many they are.
extern "C" __global__ void __launch_bounds__(THREADS)
count_numbers(
    const u8* symbols, i32 width, i64 n, const i64* lasts, i32 numbers, u64* counts
) {
    __shared__ u32 found[NEAR + SIZES];
    __shared__ i64 scratch[THREADS / WARP];
    clear(found, NEAR + SIZES);
    for (i64 tile = blockIdx.x; tile * TILE < n; tile += gridDim.x) {
        i64 start = tile * TILE + threadIdx.x * EACH;
        Share own(symbols, width, n, start);
        i64 last = last_before(own, start, lasts[tile], scratch);
        Packed near = {0};
#pragma unroll 1
        for (int k = 0; k < EACH && start + k < n; ++k) {
            u64 symbol = own[k], number = symbol - 2 * (symbol & 1);
            if (numbers != ZIGZAG) {
                if (!symbol) continue;
                number = numbers == LEVELS ? (symbol >> 1) - 1 : (u64)(start + k - last);
                last = start + k + 1;
            }
            if (number < NEAR) {
                near.add((int)number, found);
                continue;
            }
            for (u64 rest = number | 1ull << (SIZES - 1); rest; rest &= rest - 1)
                atomicAdd(found + NEAR + (__ffsll((i64)rest) - 1), 1u);
        }
        near.flush(found);
    }
    add_up(found, NEAR + SIZES, counts);
}

static const int PARAMETERS = 48;

// The least parameter of which Rice words are shortest, given what `count_numbers` finds; but of
// `all` numbers only `*words` have one, the others are 0. SIZES threads.
extern "C" __global__ void __launch_bounds__(SIZES)
best_parameter(const u64* counts, i64 all, const i64* words, i64* parameter) {
    __shared__ u64 lengths[SIZES];
    int k = threadIdx.x;
    u64 sum = 0, total = counts[NEAR + SIZES - 1] - (u64)(all - *words);
    for (u32 number = 0; number < (u32)NEAR; ++number) {
        sum += counts[number] * (number >> min(k, 31));
        total += counts[number];
    }
    for (int bit = k; bit < SIZES - 1; ++bit) sum += counts[NEAR + bit] << (bit - k);
    lengths[k] = sum + total * (1 + (u64)k);
    __syncthreads();
    if (k) return;
    int best = 0;
    for (int other = 1; other < PARAMETERS; ++other)
        if (lengths[other] < lengths[best]) best = other;
    *parameter = best;
}
