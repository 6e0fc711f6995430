// Twin of class_changes.py: changes of bit patterns by classes of the old elements.
//
// A warp processes parts of PART elements in rows of 32. In each row, lane k knows which lanes have an
// element of class k, and how many elements of the class precede the row. Sums over the parts, class by
// class, give the numbers that precede a part. Patterns have `width` bytes: 1, 2, 4 or 8.
#include "kernels/bits/widths.cuh"
#include "kernels/numeric/counting.cuh"
#include "kernels/numeric/scan.cuh"

static const i64 PART = 1024;     // elements of a warp
static const u32 CONTEXTS = 256;  // values of a context
static const u32 CLASSES = 6;     // most classes
static const u32 WARPS = 8;       // of a block that has a table for each

// The context of a pattern, and the class of a context: the number of bounds that it reaches. Each of
// the CLASSES - 1 bounds has 12 bits; no context reaches one above 255.
__device__ __forceinline__ u32 context_of(u64 pattern, i32 shift) { return pattern >> shift & 255; }

__device__ __forceinline__ u32 class_of(u64 pattern, i32 shift, u64 bounds) {
    u32 context = context_of(pattern, shift), kind = 0;
#pragma unroll
    for (u32 k = 0; k < CLASSES - 1; ++k) kind += context >= (u32)(bounds >> 12 * k & 0xFFF);
    return kind;
}

// The lanes whose elements have the class that is the number of the own lane. Elements that are not
// there have the class CLASSES. All lanes must call it.
__device__ __forceinline__ u32 members_of_lane(u32 kind) {
    u32 own = 0;
#pragma unroll
    for (u32 k = 0; k < CLASSES; ++k) {
        u32 lanes = __ballot_sync(EVERY_LANE, kind == k);
        if (threadIdx.x % WARP == k) own = lanes;
    }
    return own;
}

// The rank of a pattern in the order of values, and the pattern of a rank; `sign` is the highest bit.
__device__ __forceinline__ u64 rank_of(u64 pattern, bool is_float, u64 sign) {
    if (!is_float) return pattern;
    return pattern & sign ? ~pattern & (sign | (sign - 1)) : pattern | sign;
}

__device__ __forceinline__ u64 pattern_of(u64 rank, bool is_float, u64 sign) {
    if (!is_float) return rank;
    return rank & sign ? rank ^ sign : ~rank & (sign | (sign - 1));
}

// The first of the rising places from `low` to `high` - 1 that is not below `place`; else `high`.
__device__ __forceinline__ i64 first_from(const i64* places, i64 low, i64 high, i64 place) {
    while (low < high) {
        i64 middle = low + (high - low) / 2;
        if (places[middle] < place) low = middle + 1;
        else high = middle;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(256)
    tally_contexts(const u8* __restrict__ old, const u8* __restrict__ updated, i32 width, i64 n,
                   i32 shift, u64* __restrict__ counts) {
    // WARPS whole warps, each with a table of its own; counts: CONTEXTS of equal elements, and CONTEXTS
    // of changed ones.
    __shared__ u32 tables[WARPS * 2 * CONTEXTS];
    u32* table = tables + threadIdx.x / WARP * 2 * CONTEXTS;
    for (u32 k = threadIdx.x; k < WARPS * 2 * CONTEXTS; k += blockDim.x) tables[k] = 0;
    __syncthreads();
    u32 lane = threadIdx.x % WARP;
    for (i64 row = GCODEC_FIRST - lane; row < n; row += GCODEC_STEP) {  // the same for a whole warp
        i64 i = row + lane;
        u32 place = NOT_COUNTED;
        if (i < n) {
            u64 a = pattern_at(old, width, i), b = pattern_at(updated, width, i);
            place = context_of(a, shift) + (a != b ? CONTEXTS : 0);
        }
        count_place(table, place, 0, 0);
    }
    __syncthreads();
    for (u32 k = threadIdx.x; k < 2 * CONTEXTS; k += blockDim.x) {
        u64 total = 0;
        for (u32 w = 0; w < WARPS; ++w) total += tables[w * 2 * CONTEXTS + k];
        if (total) atomicAdd(&counts[k], total);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    count_class_parts(const u8* __restrict__ old, const u8* __restrict__ updated, i32 width, i64 n,
                      i32 shift, u64 bounds, u32 classes, i64 parts, bool compares,
                      i64* __restrict__ elements, i64* __restrict__ changed) {
    // Whole warps; classes <= CLASSES. elements and, if compares, changed: the numbers of each part,
    // class by class: classes · parts.
    u32 lane = threadIdx.x % WARP;
    for (i64 part = GCODEC_FIRST / WARP; part < parts; part += GCODEC_STEP / WARP) {
        i64 stop = min((part + 1) * PART, n);
        u32 members = 0, unequal = 0;
#pragma unroll 1
        for (i64 row = part * PART; row < stop; row += WARP) {  // the same for all lanes
            i64 i = row + lane;
            u64 pattern = i < n ? pattern_at(old, width, i) : 0;
            bool is_changed = compares && i < n && pattern_at(updated, width, i) != pattern;
            u32 own = members_of_lane(i < n ? class_of(pattern, shift, bounds) : CLASSES);
            members += __popc(own);
            unequal += __popc(own & __ballot_sync(EVERY_LANE, is_changed));
        }
        if (lane < classes) {
            elements[lane * parts + part] = members;
            if (compares) changed[lane * parts + part] = unequal;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    write_changes(const u8* __restrict__ old, const u8* __restrict__ updated, i32 width, i64 n,
                  i32 shift, u64 bounds, u32 classes, i64 parts, bool is_float,
                  const i64* __restrict__ elements, const i64* __restrict__ changed, i64 count,
                  i64* __restrict__ places, u8* __restrict__ differences) {
    // Whole warps; classes <= CLASSES. elements, changed: classes · parts + 1 sums of the numbers that
    // precede each part. places, differences: `count` elements, those of the first class first.
    u32 lane = threadIdx.x % WARP;
    u64 sign = 1ull << (8 * width - 1), top = sign | (sign - 1);
    for (i64 part = GCODEC_FIRST / WARP; part < parts; part += GCODEC_STEP / WARP) {
        i64 stop = min((part + 1) * PART, n);
        // The number of elements of the class that is the lane's number, and the index of its next
        // change.
        i64 place = 0, next = 0;
        bool has_changes = false;
        if (lane < classes) {
            i64 k = lane * parts + part;
            place = elements[k] - elements[lane * parts];
            next = changed[k];
            has_changes = changed[k + 1] > next;
        }
        if (!__any_sync(EVERY_LANE, has_changes)) continue;
        for (i64 row = part * PART; row < stop; row += WARP) {  // the same for all lanes
            i64 i = row + lane;
            u64 a = i < n ? pattern_at(old, width, i) : 0, b = i < n ? pattern_at(updated, width, i) : 0;
            u32 kind = i < n ? class_of(a, shift, bounds) : CLASSES;
            u32 own = members_of_lane(kind), on = __ballot_sync(EVERY_LANE, a != b);
            u32 before = __shfl_sync(EVERY_LANE, own, kind) & ((1u << lane) - 1);
            i64 at = __shfl_sync(EVERY_LANE, next, kind) + __popc(before & on);
            i64 own_place = __shfl_sync(EVERY_LANE, place, kind) + __popc(before);
            if (a != b && (u64)at < (u64)count) {  // unless another thread changes the arrays
                u64 d = (rank_of(b, is_float, sign) - rank_of(a, is_float, sign)) & top;
                places[at] = own_place;
                put_pattern(differences, width, at, (d << 1 ^ (d & sign ? top : 0)) & top);
            }
            place += __popc(own);
            next += __popc(own & on);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    apply_changes(u8* patterns, i32 width, i64 n, i32 shift, u64 bounds, u32 classes, i64 parts,
                  bool is_float, const i64* __restrict__ elements, const i64* __restrict__ ends,
                  const i64* __restrict__ places, const u8* __restrict__ differences) {
    // Whole warps; classes <= CLASSES. elements: see write_changes. places, differences: ends[classes]
    // elements, those of class k from ends[k] to ends[k + 1] - 1. A lane alone reads and writes each
    // pattern.
    u32 lane = threadIdx.x % WARP;
    u64 sign = 1ull << (8 * width - 1);
    for (i64 part = GCODEC_FIRST / WARP; part < parts; part += GCODEC_STEP / WARP) {
        i64 stop = min((part + 1) * PART, n);
        // Of the class that is the lane's number: the number of preceding elements, and the changes
        // of this part.
        i64 place = 0, first = 0, end = 0;
        if (lane < classes) {
            i64 k = lane * parts + part, last = ends[lane + 1];
            place = elements[k] - elements[lane * parts];
            first = first_from(places, ends[lane], last, place);
            end = first_from(places, first, last, place + elements[k + 1] - elements[k]);
        }
        if (!__any_sync(EVERY_LANE, first < end)) continue;
        for (i64 row = part * PART; row < stop; row += WARP) {  // the same for all lanes
            i64 i = row + lane;
            u64 pattern = i < n ? pattern_at(patterns, width, i) : 0;
            u32 kind = i < n ? class_of(pattern, shift, bounds) : CLASSES;
            u32 own = members_of_lane(kind);
            u32 before = __shfl_sync(EVERY_LANE, own, kind) & ((1u << lane) - 1);
            i64 own_place = __shfl_sync(EVERY_LANE, place, kind) + __popc(before);
            i64 low = __shfl_sync(EVERY_LANE, first, kind), high = __shfl_sync(EVERY_LANE, end, kind);
            i64 at = first_from(places, low, high, own_place);
            if (i < n && at < high && places[at] == own_place) {
                u64 d = pattern_at(differences, width, at);
                u64 rank = rank_of(pattern, is_float, sign) + (d >> 1 ^ (0 - (d & 1)));
                put_pattern(patterns, width, i, pattern_of(rank & (sign | (sign - 1)), is_float, sign));
            }
            place += __popc(own);
        }
    }
}
