// Classes of elements and the counts of symbols in each class; see class_map.py.
#include "kernels/numeric/counting.cuh"
#include "kernels/bits/listed.cuh"
#include "kernels/context/classes.cuh"

static const u16 ESCAPE = 254;
static const int THREADS = 256;
static const i64 TILE = 4096;
static const i64 SEGMENT = 4096;  // elements of a row that a warp sums

// The classes of `count` <= 4 elements from i on, a byte each.
__device__ __forceinline__ u32 four_classes(const Scales& scales, i64 i, int count) {
    Place place(scales, i);
    u32 classes = 0;
    for (int k = 0; k < count; ++k) {
        classes |= place.number(scales) << 8 * k;
        place.next(scales);
    }
    return classes;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    map_classes(const u8* __restrict__ rows, const u8* __restrict__ columns,
                const i64* __restrict__ sizes, i64 start, u8* __restrict__ out, i64 n) {
    Scales scales(rows, columns, sizes);
    for (i64 i = 4 * GCODEC_FIRST; i < n; i += 4 * GCODEC_STEP) {
        int count = (int)min(n - i, (i64)4);
        u32 classes = four_classes(scales, start + i, count);
        if (count == 4 && ((u64)(out + i) & 3) == 0) *(u32*)(out + i) = classes;
        else
            for (int k = 0; k < count; ++k) out[i + k] = (u8)(classes >> 8 * k);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    join_symbols(const u8* __restrict__ symbols, const u8* __restrict__ rows,
                 const u8* __restrict__ columns, const i64* __restrict__ sizes, i64 start,
                 u16* __restrict__ out, i64 n) {
    Scales scales(rows, columns, sizes);
    for (i64 i = 4 * GCODEC_FIRST; i < n; i += 4 * GCODEC_STEP) {
        int count = (int)min(n - i, (i64)4);
        u32 classes = four_classes(scales, start + i, count);
        u64 joined = 0;
        for (int k = 0; k < count; ++k)
            joined |= (u64)((classes >> 8 * k & 255) << 8 | symbols[i + k]) << 16 * k;
        if (count == 4 && ((u64)(out + i) & 7) == 0) *(u64*)(out + i) = joined;
        else
            for (int k = 0; k < count; ++k) out[i + k] = (u16)(joined >> 16 * k);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    join_escapes(const i64* __restrict__ places, i64 count, u16* __restrict__ out, i64 n) {
    for (i64 j = GCODEC_FIRST; j < count; j += GCODEC_STEP)
        if ((u64)places[j] < (u64)n) out[places[j]] = (u16)((out[places[j]] & 0xFF00) | ESCAPE);
}

// Counts every `step`-th tile; counts: 256 for each class.
extern "C" __global__ void __launch_bounds__(THREADS)
    count_classes(const u8* __restrict__ symbols, i64 n, const u8* __restrict__ rows,
                  const u8* __restrict__ columns, const i64* __restrict__ sizes, i64 step,
                  u64* __restrict__ counts) {
    __shared__ u32 near[CLASSES * NEAR];
    Scales scales(rows, columns, sizes);
    count_by_model(
        symbols, n, TILE, CLASSES, near, counts,
        [&](i64 tile) { return tile * step * TILE; },
        [&](i64 i) { return Place(scales, i).number(scales); }
    );
}

// Joins classes and symbols. A symbol above the largest of its class becomes an escape, and is
// listed; `wide` has the original values of the first `wide_size` symbols.
extern "C" __global__ void __launch_bounds__(THREADS)
    join_and_list(const u8* __restrict__ symbols, i64 n, const u32* __restrict__ wide,
                  i64 wide_size, const u8* __restrict__ rows, const u8* __restrict__ columns,
                  const i64* __restrict__ sizes, const u8* __restrict__ tops,
                  u16* __restrict__ joined, u64* __restrict__ out, i64 room) {
    Scales scales(rows, columns, sizes);
    list(
        n, out, room,
        [&](i64 i) {
            u32 number = Place(scales, i).number(scales), symbol = symbols[i];
            bool unknown = symbol >> 1 > tops[number];
            joined[i] = (u16)(number << 8 | (unknown ? ESCAPE : symbol));
            return unknown;
        },
        [&](i64 i) { return i < wide_size ? (u64)wide[i] : (u64)symbols[i]; }
    );
}

// Lists the symbols above the largest of their class; tops: of each class.
extern "C" __global__ void __launch_bounds__(THREADS)
    list_unknown(const u8* __restrict__ symbols, i64 n, const u8* __restrict__ rows,
                 const u8* __restrict__ columns, const i64* __restrict__ sizes,
                 const u8* __restrict__ tops, u64* __restrict__ out, i64 room) {
    Scales scales(rows, columns, sizes);
    list(
        n, out, room,
        [&](i64 i) { return symbols[i] >> 1 > tops[Place(scales, i).number(scales)]; },
        [&](i64 i) { return (u64)symbols[i]; }
    );
}

// The sum of the magnitudes of four symbols.
__device__ __forceinline__ u32 magnitudes(u32 four) {
    u32 halves = four >> 1 & 0x7F7F7F7F;
    halves = (halves & 0x00FF00FF) + (halves >> 8 & 0x00FF00FF);
    return (halves & 0xFFFF) + (halves >> 16);
}

// Whole warps. sums: of each row, initially 0. A warp sums a segment of a row at a time.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_rows(const u8* __restrict__ symbols, i64 n, const i64* __restrict__ sizes,
             u64* __restrict__ sums) {
    i64 width = sizes[1];
    int lane = threadIdx.x % WARP;
    i64 segments = (width + SEGMENT - 1) / SEGMENT, count = (n + width - 1) / width * segments;
    for (i64 task = GCODEC_FIRST / WARP; task < count; task += GCODEC_STEP / WARP) {
        i64 row = task / segments, first = row * width + task % segments * SEGMENT;
        i64 stop = min(min(first + SEGMENT, (row + 1) * width), n);
        u32 own = 0;
        i64 aligned = min(first + (i64)(-(u64)(symbols + first) & 3), stop);
        for (i64 i = first + lane; i < aligned; i += WARP) own += symbols[i] >> 1;
        i64 i = aligned + 4 * lane;
        for (; i + 4 <= stop; i += 4 * WARP) own += magnitudes(*(const u32*)(symbols + i));
        for (; i < stop; ++i) own += symbols[i] >> 1;  // one lane: less than a word remains
        for (int step = 16; step; step /= 2) own += __shfl_xor_sync(EVERY_LANE, own, step);
        if (lane == 0 && own) atomicAdd(&sums[row], (u64)own);
    }
}

// sums: of each column, initially 0; none if sizes[0] is 0. A thread has a column, or one of
// several rows of it if there are few columns. blockIdx.x selects columns, blockIdx.y a share of
// the rows.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_columns(const u8* __restrict__ symbols, i64 n, const i64* __restrict__ sizes,
                u64* __restrict__ sums) {
    i64 width = sizes[1];
    i64 across = min(width, (i64)THREADS), down = THREADS / across;  // elements of a step
    if (!sizes[0] || threadIdx.x >= across * down) return;
    i64 column = (i64)blockIdx.x * across + threadIdx.x % across;
    i64 above = blockIdx.y * down + threadIdx.x / across, step = gridDim.y * down * width;
    for (; column < width; column += gridDim.x * across) {
        u64 own = 0;
        for (i64 i = above * width + column; i < n; i += step) own += symbols[i] >> 1;
        if (own) atomicAdd(&sums[column], own);
    }
}
