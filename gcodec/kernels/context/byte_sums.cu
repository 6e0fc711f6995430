// Twin of byte_sums.py: sums of the first plane of bit patterns.
#include "kernels/bits/widths.cuh"
#include "kernels/numeric/scan.cuh"

static const int THREADS = 256;
static const i64 SEGMENT = 4096;  // elements of a row that a warp sums

// Sums the first plane of rows of `length` patterns, the first ones of `period`. sums, counts: the
// sum of bytes of each row, and the number of those that are not 0. least: 256 minus the least of
// these. All are initially 0. Whole warps; a warp sums a segment of a row at a time.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_plane_rows(const u8* __restrict__ patterns, i32 width, i32 shift, i64 n, i64 length,
                   i64 period, u64* __restrict__ sums, u64* __restrict__ counts,
                   u32* __restrict__ least, u32* __restrict__ greatest) {
    int lane = threadIdx.x % WARP;
    i64 segments = (length + SEGMENT - 1) / SEGMENT, tasks = (n + period - 1) / period * segments;
    for (i64 task = GCODEC_FIRST / WARP; task < tasks; task += GCODEC_STEP / WARP) {
        i64 row = task / segments, first = row * period + task % segments * SEGMENT;
        i64 stop = min(min(first + SEGMENT, row * period + length), n);
        u32 sum = 0, count = 0, low = 0, high = 0;
        for (i64 i = first + lane; i < stop; i += WARP) {
            u32 byte = pattern_at(patterns, width, i) >> shift & 255;
            sum += byte;
            count += byte != 0;
            low = max(low, byte ? 256 - byte : 0);
            high = max(high, byte);
        }
        for (int step = WARP / 2; step; step /= 2) {
            sum += __shfl_xor_sync(EVERY_LANE, sum, step);
            count += __shfl_xor_sync(EVERY_LANE, count, step);
            low = max(low, __shfl_xor_sync(EVERY_LANE, low, step));
            high = max(high, __shfl_xor_sync(EVERY_LANE, high, step));
        }
        if (lane || !count) continue;
        atomicAdd(&sums[row], (u64)sum);
        atomicAdd(&counts[row], (u64)count);
        atomicMax(&least[row], low);
        atomicMax(&greatest[row], high);
    }
}

// Sums the first plane of columns. sums: of each column, then the number of bytes that are not 0,
// initially 0. blockIdx.x selects columns, blockIdx.y a share of the rows.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_plane_columns(const u8* __restrict__ patterns, i32 width, i32 shift, i64 n, i64 length,
                      i64 period, u64* __restrict__ sums) {
    i64 column = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (column >= length) return;
    u64 sum = 0, count = 0;
    for (i64 i = blockIdx.y * period + column; i < n; i += gridDim.y * period) {
        u32 byte = pattern_at(patterns, width, i) >> shift & 255;
        sum += byte;
        count += byte != 0;
    }
    if (!count) return;
    atomicAdd(&sums[column], sum);
    atomicAdd(&sums[length + column], count);
}
