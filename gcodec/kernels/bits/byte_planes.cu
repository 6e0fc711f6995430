// Twin of byte_planes.py: the planes of bit patterns but the first, and the elements that they contain.
#include "kernels/bits/widths.cuh"
#include "kernels/numeric/scan.cuh"

static const int THREADS = 256;
static const i64 GROUP = 4096;
static const i64 OWN = GROUP / THREADS;  // neighboring elements of a thread

// The bits of a pattern that are not in the first plane, joined: those above it move by `distance`.
__device__ __forceinline__ u64 joined_rest(u64 pattern, i32 shift, i32 distance) {
    u64 low = ((u64)1 << shift) - 1;
    return (pattern >> distance & ~low) | (pattern & low);
}

__device__ __forceinline__ void put_rest(u64 rest, i32 planes, i64 stride, u8* out, i64 place) {
    for (i32 plane = 0; plane < planes; ++plane)
        out[plane * stride + place] = (u8)(rest >> 8 * (planes - 1 - plane));
}

// Writes all elements of n patterns of `width` bytes: out: (width - 1) * stride, stride >= n.
extern "C" __global__ void __launch_bounds__(THREADS)
    take_others(const u8* __restrict__ patterns, i32 width, i32 shift, i32 distance, i64 n,
                i64 stride, u8* __restrict__ out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u64 rest = joined_rest(pattern_at(patterns, width, i), shift, distance);
        put_rest(rest, width - 1, stride, out, i);
    }
}

// Writes the elements that are not 0. starts: their number before each group; a block has a group.
extern "C" __global__ void __launch_bounds__(THREADS)
    take_coded(const u8* __restrict__ patterns, i32 width, i32 shift, i32 distance, i64 n,
               const i64* __restrict__ starts, i64 stride, u8* __restrict__ out) {
    __shared__ i64 scratch[THREADS / WARP];
    i64 first = blockIdx.x * GROUP + threadIdx.x * OWN, stop = min(first + OWN, n), count = 0;
    for (i64 i = first; i < stop; ++i) count += pattern_at(patterns, width, i) != 0;
    i64 place = starts[blockIdx.x] + scan_block<Sum>(count, scratch).before;
    for (i64 i = first; i < stop; ++i) {
        u64 pattern = pattern_at(patterns, width, i);
        if (pattern == 0 || place >= stride) continue;
        put_rest(joined_rest(pattern, shift, distance), width - 1, stride, out, place++);
    }
}

// counts: of each group, the elements that are not 0; hidden: adds those whose byte of the first
// plane is 0. A block has a group.
extern "C" __global__ void __launch_bounds__(THREADS)
    count_coded(const u8* __restrict__ patterns, i32 width, i32 shift, i64 n,
                u16* __restrict__ counts, u64* __restrict__ hidden) {
    __shared__ i64 scratch[THREADS / WARP];
    i64 stop = min((i64)(blockIdx.x + 1) * GROUP, n), own = 0;  // the hidden ones in the upper half
    for (i64 i = blockIdx.x * GROUP + threadIdx.x; i < stop; i += THREADS) {
        u64 pattern = pattern_at(patterns, width, i);
        own += pattern == 0 ? 0 : (pattern >> shift & 255) == 0 ? (i64)1 << 32 | 1 : 1;
    }
    i64 total = scan_block<Sum>(own, scratch).total;
    if (threadIdx.x) return;
    counts[blockIdx.x] = (u16)total;
    if (total >> 32) atomicAdd(hidden, (u64)(total >> 32));
}
