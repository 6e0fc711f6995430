// Tiles of 4096 symbols of one, two or four bytes, for a block of threads: 16 symbols for each thread.
#pragma once
#include "kernels/numeric/scan.cuh"

static const int THREADS = 256;
static const int EACH = 16;
static const int TILE = THREADS * EACH;

// Sixteen bytes, which one load fetches.
struct __align__(16) Quad {
    u32 part[4];
};

// The 16 of n symbols from `start` on; 0 after the last symbol.
struct Share {
    Quad held[4];
    int width;  // bytes of a symbol

    __device__ __forceinline__ Share(const u8* symbols, i32 nbytes, i64 n, i64 start)
        : width(nbytes) {
        const u8* first = symbols + start * width;
        if (start + EACH <= n && ((u64)first & 15) == 0) {
            for (int q = 0; q < width; ++q) held[q] = ((const Quad*)first)[q];
            return;
        }
        i64 room = (n - start) * width;  // bytes up to the end; negative for threads after the end
#pragma unroll 1
        for (int b = 0; b < EACH * width; ++b) ((u8*)held)[b] = b < room ? first[b] : 0;
    }

    __device__ __forceinline__ u32 operator[](int k) const {
        if (width == 1) return ((const u8*)held)[k];
        if (width == 2) return ((const u16*)held)[k];
        return ((const u32*)held)[k];
    }
};

// The position, counted from 1, of the last nonzero symbol before those of this thread, or 0; `before`
// is that before the tile, below 1 if there is none. All threads of the block call it.
__device__ __forceinline__ i64 last_before(const Share& own, i64 start, i64 before, i64* scratch) {
    i64 last = 0;
#pragma unroll 1
    for (int k = 0; k < EACH; ++k)
        if (own[k]) last = start + k + 1;
    i64 inside = scan_block<Max>(last, scratch).before;
    before = before > inside ? before : inside;
    return before > 0 ? before : 0;
}
