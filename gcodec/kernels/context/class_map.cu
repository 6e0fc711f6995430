// Twin of class_map.py: classes of elements, and what symbols there are of each.
#include "kernels/numeric/counting.cuh"
#include "kernels/bits/listed.cuh"

static const i32 CLASSES = 64, CENTRE = 64;
static const u16 ESCAPE = 254;
static const int THREADS = 256;
static const i64 TILE = 4096;
static const i64 SEGMENT = 4096;  // elements of a row that a warp adds up

// The scales of elements in rows of `width`, those of columns only where `height` is not 0. There
// are as many rows as elements have, and a scale for each column.
struct Scales {
    const u8* rows;
    const u8* columns;
    i64 height, width;
};

// Where an element is, and the class that it has.
struct Place {
    i64 row, column;

    __device__ __forceinline__ Place(const Scales& of, i64 i) {
        if (((u64)i | (u64)of.width) >> 32) row = i / of.width;
        else row = (u32)i / (u32)of.width;
        column = i - row * of.width;
    }
    __device__ __forceinline__ u32 number(const Scales& of) const {
        i32 beside = of.height ? of.columns[column] : CENTRE;
        return (u32)min(max(beside + of.rows[row] - CENTRE, 0), CLASSES - 1);
    }
    __device__ __forceinline__ void next(const Scales& of) {
        if (++column < of.width) return;
        column = 0;
        ++row;
    }
};

// The classes of `count` <= 4 elements from i on, a byte each.
__device__ __forceinline__ u32 four_classes(const Scales& of, i64 i, int count) {
    Place place(of, i);
    u32 found = 0;
    for (int k = 0; k < count; ++k) {
        found |= place.number(of) << 8 * k;
        place.next(of);
    }
    return found;
}

static __device__ __forceinline__ void map_of(const Scales& of, i64 start, u8* out, i64 n) {
    for (i64 i = 4 * GCODEC_FIRST; i < n; i += 4 * GCODEC_STEP) {
        int count = (int)min(n - i, (i64)4);
        u32 found = four_classes(of, start + i, count);
        if (count == 4 && ((u64)(out + i) & 3) == 0) *(u32*)(out + i) = found;
        else
            for (int k = 0; k < count; ++k) out[i + k] = (u8)(found >> 8 * k);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    map_classes(const u8* __restrict__ rows, const u8* __restrict__ columns, i64 height, i64 width,
                i64 start, u8* __restrict__ out, i64 n) {
    map_of({rows, columns, height, width}, start, out, n);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    join_symbols(const u8* __restrict__ symbols, const u8* __restrict__ rows,
                 const u8* __restrict__ columns, i64 height, i64 width, i64 start,
                 u16* __restrict__ out, i64 n) {
    Scales of = {rows, columns, height, width};
    for (i64 i = 4 * GCODEC_FIRST; i < n; i += 4 * GCODEC_STEP) {
        int count = (int)min(n - i, (i64)4);
        u32 found = four_classes(of, start + i, count);
        u64 joined = 0;
        for (int k = 0; k < count; ++k)
            joined |= (u64)((found >> 8 * k & 255) << 8 | symbols[i + k]) << 16 * k;
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

// Of each `step`-th tile; counts: 256 for each class
static __device__ __forceinline__ void count_of(const u8* symbols, i64 n, const Scales& of, i64 step,
                                                u64* counts) {
    __shared__ u32 found[CLASSES * NEAR];
    count_by_model(
        symbols, n, TILE, CLASSES, found, counts,
        [&](i64 tile) { return tile * step * TILE; },
        [&](i64 i) { return Place(of, i).number(of); }
    );
}

extern "C" __global__ void __launch_bounds__(THREADS)
    count_classes(const u8* __restrict__ symbols, i64 n, const u8* __restrict__ rows,
                  const u8* __restrict__ columns, i64 height, i64 width, i64 step,
                  u64* __restrict__ counts) {
    count_of(symbols, n, {rows, columns, height, width}, step, counts);
}

// In those that end on `chosen`, sizes are what a device has chosen: of columns, and of rows.

extern "C" __global__ void __launch_bounds__(THREADS)
    map_chosen(const u8* __restrict__ rows, const u8* __restrict__ columns,
               const i64* __restrict__ sizes, u8* __restrict__ out, i64 n) {
    map_of({rows, columns, sizes[0], sizes[1]}, 0, out, n);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    count_chosen(const u8* __restrict__ symbols, i64 n, const u8* __restrict__ rows,
                 const u8* __restrict__ columns, const i64* __restrict__ sizes, i64 step,
                 u64* __restrict__ counts) {
    count_of(symbols, n, {rows, columns, sizes[0], sizes[1]}, step, counts);
}

// Classes above symbols, of which those above the largest of their class are escapes, and listed: as
// `every` tells them, if it has some.
extern "C" __global__ void __launch_bounds__(THREADS)
    join_chosen(const u8* __restrict__ symbols, i64 n, const u32* __restrict__ every, i64 some,
                const u8* __restrict__ rows, const u8* __restrict__ columns,
                const i64* __restrict__ sizes, const u8* __restrict__ tops,
                u16* __restrict__ joined, u64* __restrict__ out, i64 room) {
    Scales of = {rows, columns, sizes[0], sizes[1]};
    list(
        n, out, room,
        [&](i64 i) {
            u32 number = Place(of, i).number(of), symbol = symbols[i];
            bool unknown = symbol >> 1 > tops[number];
            joined[i] = (u16)(number << 8 | (unknown ? ESCAPE : symbol));
            return unknown;
        },
        [&](i64 i) { return i < some ? (u64)every[i] : (u64)symbols[i]; }
    );
}

extern "C" __global__ void __launch_bounds__(THREADS)
    list_unknown(const u8* __restrict__ symbols, i64 n, const u8* __restrict__ rows,
                 const u8* __restrict__ columns, i64 height, i64 width,
                 const u8* __restrict__ tops, u64* __restrict__ out, i64 room) {
    // tops: of each class
    Scales of = {rows, columns, height, width};
    list(
        n, out, room,
        [&](i64 i) { return symbols[i] >> 1 > tops[Place(of, i).number(of)]; },
        [&](i64 i) { return (u64)symbols[i]; }
    );
}

// The sum of the magnitudes of four symbols.
__device__ __forceinline__ u32 magnitudes(u32 four) {
    u32 halves = four >> 1 & 0x7F7F7F7F;
    halves = (halves & 0x00FF00FF) + (halves >> 8 & 0x00FF00FF);
    return (halves & 0xFFFF) + (halves >> 16);
}

// Whole warps; sums: of each row, 0 before. A warp adds up a segment of a row at a time.
__device__ __forceinline__ void add_rows(const u8* symbols, i64 n, i64 width, u64* sums) {
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
        for (; i < stop; ++i) own += symbols[i] >> 1;  // of one lane, as it is less than a word
        for (int step = 16; step; step /= 2) own += __shfl_xor_sync(EVERY_LANE, own, step);
        if (lane == 0 && own) atomicAdd(&sums[row], (u64)own);
    }
}

// sums: of each column, 0 before. A thread has a column, or where there are few columns one of
// several rows; blockIdx.x tells which columns, blockIdx.y which share of the rows.
__device__ __forceinline__ void add_columns(const u8* symbols, i64 n, i64 width, u64* sums) {
    i64 across = min(width, (i64)THREADS), down = THREADS / across;  // elements of a step
    if (threadIdx.x >= across * down) return;
    i64 column = (i64)blockIdx.x * across + threadIdx.x % across;
    i64 above = blockIdx.y * down + threadIdx.x / across, step = gridDim.y * down * width;
    for (; column < width; column += gridDim.x * across) {
        u64 own = 0;
        for (i64 i = above * width + column; i < n; i += step) own += symbols[i] >> 1;
        if (own) atomicAdd(&sums[column], own);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sum_rows(const u8* __restrict__ symbols, i64 n, i64 width, u64* __restrict__ sums) {
    add_rows(symbols, n, width, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sum_columns(const u8* __restrict__ symbols, i64 n, i64 width, u64* __restrict__ sums) {
    add_columns(symbols, n, width, sums);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sum_rows_chosen(const u8* __restrict__ symbols, i64 n, const i64* __restrict__ sizes,
                    u64* __restrict__ sums) {
    add_rows(symbols, n, sizes[1], sums);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sum_columns_chosen(const u8* __restrict__ symbols, i64 n, const i64* __restrict__ sizes,
                       u64* __restrict__ sums) {
    if (sizes[0]) add_columns(symbols, n, sizes[1], sums);
}
