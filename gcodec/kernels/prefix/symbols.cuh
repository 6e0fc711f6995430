// Tiles of symbols, which a block of threads looks at: 4096 of them, 16 for each thread. They are
// of one, two or four bytes.
#pragma once
#include "kernels/numeric/scan.cuh"

static const int THREADS = 256;
static const int EACH = 16;
static const int TILE = THREADS * EACH;

// Sixteen bytes, as they are loaded at once.
struct __align__(16) Quad {
    u32 part[4];
};

// The symbols from `start` on of n, 0 behind the last one.
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
        i64 room = (n - start) * width;  // bytes that there are, below 0 for threads behind all
#pragma unroll 1
        for (int b = 0; b < EACH * width; ++b) ((u8*)held)[b] = b < room ? first[b] : 0;
    }

    __device__ __forceinline__ u32 operator[](int k) const {
        if (width == 1) return ((const u8*)held)[k];
        if (width == 2) return ((const u16*)held)[k];
        return ((const u32*)held)[k];
    }
};

// The position, from 1 on, of the last symbol before those of this thread that is not 0; `before` is
// that before the tile, less than 1 if there is none. All threads of the block call it.
__device__ __forceinline__ i64 last_before(const Share& own, i64 start, i64 before, i64* scratch) {
    i64 last = 0;
#pragma unroll 1
    for (int k = 0; k < EACH; ++k)
        if (own[k]) last = start + k + 1;
    i64 inside = scan_block<Max>(last, scratch).before;
    before = before > inside ? before : inside;
    return before > 0 ? before : 0;
}
