// Costs of the symbols of rows and columns for shifted scales; see scale_fit.py.
#include "kernels/numeric/scan.cuh"

static const int THREADS = 256;
static const int SHIFTS = 5;
static const i32 CENTER = 64;
static const i64 SEGMENT = 4096;  // elements of a row that a warp sums

// The SHIFTS costs of a symbol; `table` has `count` classes for each magnitude.
__device__ __forceinline__ const i32* costs_of(
    u32 symbol, i32 row_scale, i32 column_scale, const i32* table, i32 count) {
    i32 place = min(max(row_scale + column_scale, 0), count - 1);
    return table + ((symbol >> 1) * count + place) * SHIFTS;
}

// In both kernels, rows and columns hold all scales; the table has `far` classes before class 0.

// Whole warps. sums: SHIFTS of each row, initially 0. A warp sums a segment of a row at a time.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_row_costs(const u8* __restrict__ symbols, i64 n, const u8* __restrict__ rows,
                  const u8* __restrict__ columns, i64 width, const i32* __restrict__ table,
                  i32 count, i32 far, u64* __restrict__ sums) {
    int lane = threadIdx.x % WARP;
    i64 segments = (width + SEGMENT - 1) / SEGMENT, all = (n + width - 1) / width * segments;
    for (i64 task = GCODEC_FIRST / WARP; task < all; task += GCODEC_STEP / WARP) {
        i64 row = task / segments, first = task % segments * SEGMENT;
        i64 stop = min(min(first + SEGMENT, width), n - row * width);
        i32 scale = rows[row] - CENTER + far;
        i64 own[SHIFTS] = {0, 0, 0, 0, 0};
        for (i64 j = first + lane; j < stop; j += WARP) {
            const i32* costs = costs_of(symbols[row * width + j], scale, columns[j], table, count);
            for (int k = 0; k < SHIFTS; ++k) own[k] += costs[k];
        }
        for (int k = 0; k < SHIFTS; ++k) {
            i64 sum = own[k];
            for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(EVERY_LANE, sum, step);
            if (lane == 0 && sum) atomicAdd(&sums[row * SHIFTS + k], (u64)sum);
        }
    }
}

// sums: SHIFTS of each column, initially 0. A thread has a column; blockIdx.y selects rows.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_column_costs(const u8* __restrict__ symbols, i64 n, const u8* __restrict__ rows,
                     const u8* __restrict__ columns, i64 width, const i32* __restrict__ table,
                     i32 count, i32 far, u64* __restrict__ sums) {
    i64 column = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (column >= width) return;
    i64 own[SHIFTS] = {0, 0, 0, 0, 0};
    for (i64 row = blockIdx.y; row * width + column < n; row += gridDim.y) {
        i32 scale = rows[row] - CENTER + far;
        u32 symbol = symbols[row * width + column];
        const i32* costs = costs_of(symbol, scale, columns[column], table, count);
        for (int k = 0; k < SHIFTS; ++k) own[k] += costs[k];
    }
    for (int k = 0; k < SHIFTS; ++k)
        if (own[k]) atomicAdd(&sums[column * SHIFTS + k], (u64)own[k]);
}
