// Twin of byte_scales.py: the first plane of bit patterns, lowered by classes.
#include "kernels/bits/widths.cuh"
#include "kernels/context/classes.cuh"
#include "kernels/numeric/scan.cuh"
#include "runtime/report.cuh"

static const int THREADS = 256;
static const i64 GROUP = 4096;
static const i64 OWN = GROUP / THREADS;  // neighboring elements of a thread

// By how much the byte of an element is lowered: a quarter of its class times `unit`, rounded.
__device__ __forceinline__ u32 lowered_by(const Scales& scales, i64 i, i32 unit) {
    return (Place(scales, i).number(scales) * unit + 2) >> 2;
}

__device__ __forceinline__ u32 lowered(u32 byte, u32 by) {
    return byte == 0 ? 0 : byte > by ? byte - by : byte + 255 - by;
}

__device__ __forceinline__ u32 raised(u32 byte, u32 by) {
    return byte == 0 ? 0 : byte + by > 255 ? byte + by - 255 : byte + by;
}

// The number of elements between runs that precede element k of them.
__device__ __forceinline__ i64 skipped(i64 k, i64 run, i64 period) {
    return k < run ? 0 : k / run * (period - run);
}

// Writes n bytes of the first plane, those of runs of `run` patterns, the first ones of `period`. An
// escape other than 0 replaces the byte 0 of patterns that are not 0.
extern "C" __global__ void __launch_bounds__(THREADS)
    take_plane(const u8* __restrict__ patterns, i32 width, i32 shift, u8 escape, i64 run,
               i64 period, u8* __restrict__ out, i64 n) {
    for (i64 k = GCODEC_FIRST; k < n; k += GCODEC_STEP) {
        u64 pattern = pattern_at(patterns, width, k + skipped(k, run, period));
        u32 byte = pattern >> shift & 255;
        out[k] = (u8)(byte == 0 && pattern != 0 ? escape : byte);
    }
}

// Lowers such bytes, if the runs begin with element `start`.
extern "C" __global__ void __launch_bounds__(THREADS)
    lower_plane(const u8* __restrict__ rows, const u8* __restrict__ columns,
                const i64* __restrict__ sizes, i32 unit, i64 start, i64 run, i64 period,
                u8* __restrict__ bytes, i64 n) {
    Scales scales(rows, columns, sizes);
    for (i64 k = GCODEC_FIRST; k < n; k += GCODEC_STEP) {
        u32 by = lowered_by(scales, start + k + skipped(k, run, period), unit);
        bytes[k] = (u8)lowered(bytes[k], by);
    }
}

struct Planes {
    const u8* others;
    i64 stride;
    i32 width, shift, distance;

    // The pattern with a byte of the first plane, and those of the others at a place.
    __device__ __forceinline__ u64 pattern(u32 byte, i64 place) const {
        u64 rest = 0, low = ((u64)1 << shift) - 1;
        for (i32 plane = 0; plane < width - 1; ++plane)
            rest = rest << 8 | others[plane * stride + place];
        return (rest & ~low) << distance | (rest & low) | (u64)byte << shift;
    }
};

// Writes n patterns. `first` may be lowered; the other planes contain all elements.
extern "C" __global__ void __launch_bounds__(THREADS)
    join_planes(const u8* __restrict__ first, const u8* __restrict__ others, i64 stride,
                i32 width, i32 shift, i32 distance, const u8* __restrict__ rows,
                const u8* __restrict__ columns, const i64* __restrict__ sizes, i32 unit,
                bool lowers, i64 start, u8* __restrict__ out, i64 n) {
    Scales scales(rows, columns, sizes);
    Planes planes = {others, stride, width, shift, distance};
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u32 byte = lowers ? raised(first[i], lowered_by(scales, start + i, unit)) : first[i];
        put_pattern(out, width, i, planes.pattern(byte, i));
    }
}

// The same if the other planes leave out the elements whose byte is 0. starts: the number of coded
// elements before each group, and of all, which the planes have. A group with another number is
// reported. A block has a group.
extern "C" __global__ void __launch_bounds__(THREADS)
    join_coded(const u8* __restrict__ first, const u8* __restrict__ others, i64 stride, i32 width,
               i32 shift, i32 distance, u8 escape, const i64* __restrict__ starts,
               const u8* __restrict__ rows, const u8* __restrict__ columns,
               const i64* __restrict__ sizes, i32 unit, bool lowers, i64 start,
               u8* __restrict__ out, i64 n, u64* __restrict__ wrong) {
    __shared__ i64 scratch[THREADS / WARP];
    Scales scales(rows, columns, sizes);
    Planes planes = {others, stride, width, shift, distance};
    i64 from = blockIdx.x * GROUP + threadIdx.x * OWN, stop = min(from + OWN, n), count = 0;
    for (i64 i = from; i < stop; ++i) count += first[i] != 0;
    Scanned coded = scan_block<Sum>(count, scratch);
    i64 place = starts[blockIdx.x];
    if (coded.total != starts[blockIdx.x + 1] - place) {  // the same for all threads
        if (threadIdx.x == 0) report(wrong, blockIdx.x);
        return;
    }
    place += coded.before;
    for (i64 i = from; i < stop; ++i) {
        u32 byte = lowers ? raised(first[i], lowered_by(scales, start + i, unit)) : first[i];
        u64 pattern = 0;
        if (byte) pattern = planes.pattern(escape && byte == escape ? 0 : byte, place++);
        put_pattern(out, width, i, pattern);
    }
}
