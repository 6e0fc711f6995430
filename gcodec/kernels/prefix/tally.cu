// Counts of symbols and gaps by size, from which Rice parameters are chosen. Blocks of threads count
// tiles of 4096 symbols, and add up their counts.
#include "kernels/bits/bits.cuh"
#include "kernels/prefix/symbols.cuh"

static const int SIZES = 64;  // bits of a number, and a total
static const int NEAR = 256;  // numbers below it are counted individually
static const int PACKED = 8;  // numbers below it are counted by each thread in registers

// Counts of numbers below 8, a byte for each: a thread counts at most 16 in a tile.
struct Packed {
    u64 counts;

    __device__ __forceinline__ void add(int number, u32* table) {
        if (number < PACKED) counts += 1ull << 8 * number;
        else atomicAdd(table + number, 1u);
    }
    __device__ __forceinline__ void flush(u32* table) {
        for (int k = 0; k < PACKED; ++k) {
            u32 count = (u32)(counts >> 8 * k) & 255;
            if (count) atomicAdd(table + k, count);
        }
    }
};

__device__ __forceinline__ void clear(u32* table, int size) {
    for (int k = threadIdx.x; k < size; k += THREADS) table[k] = 0;
    __syncthreads();
}

__device__ __forceinline__ void add_up(const u32* table, int size, u64* counts) {
    __syncthreads();
    for (int k = threadIdx.x; k < size; k += THREADS)
        if (table[k]) atomicAdd(counts + k, (u64)table[k]);
}

// Numbers that Rice codes encode. ZIGZAG: 2k − 1 for the level −k and 2k for k, for all symbols. LEVELS:
// the nonzero levels less 1. GAPS: the number of zeros before each nonzero level.
enum Numbers { ZIGZAG, LEVELS, GAPS };

// `lasts` holds the position of the last nonzero symbol before each tile. `counts` receives the count of
// each number below NEAR; then, for each bit, the count of larger numbers that have it set. In place of
// the last bit, which no number has, stands the count of all larger numbers.
extern "C" __global__ void __launch_bounds__(THREADS)
count_numbers(
    const u8* symbols, i32 width, i64 n, const i64* lasts, i32 numbers, u64* counts
) {
    __shared__ u32 table[NEAR + SIZES];
    __shared__ i64 scratch[THREADS / WARP];
    clear(table, NEAR + SIZES);
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
                near.add((int)number, table);
                continue;
            }
            for (u64 bits = number | 1ull << (SIZES - 1); bits; bits &= bits - 1)
                atomicAdd(table + NEAR + (__ffsll((i64)bits) - 1), 1u);
        }
        near.flush(table);
    }
    add_up(table, NEAR + SIZES, counts);
}

static const int PARAMETERS = 48;

// The least parameter with the shortest Rice words, by the counts of `count_numbers`. Of `all` numbers
// only `*words` have a word; the others are 0. SIZES threads.
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
