// Layout of the chunks of a tensor, and entries of DCT bases, given by their bits.
#pragma once
#include "kernels/numeric/floats.cuh"

static const i32 TABLED = 256;  // points of the largest basis that is a table
static const i32 SHORT = 64;    // points that share a factor in larger bases
static const i32 HELD = 4096;   // elements of the largest chunk in shared memory

// Positions of chunks of a·b·c elements: end to end in n elements; or, if columns is not 0, tiles of
// b·c elements in a matrix, row by row.
struct Layout {
    i64 n, rows, columns;
    i32 a, b, c;

    __device__ __forceinline__ i32 size() const { return a * b * c; }

    // The element of the tensor at element e of a chunk; n if there is none.
    __device__ __forceinline__ i64 element(i64 chunk, i32 e) const {
        if (!columns) return min(chunk * size() + e, n);
        i64 row, column;
        of_tile(chunk, e, row, column);
        return row < rows && column < columns ? row * columns + column : n;
    }

    // The element that fills up element e of a chunk, if there is none.
    __device__ __forceinline__ i64 nearest(i64 chunk, i32 e) const {
        if (!columns) return min(chunk * size() + e, n - 1);
        i64 row, column;
        of_tile(chunk, e, row, column);
        return min(row, rows - 1) * columns + min(column, columns - 1);
    }

private:
    __device__ __forceinline__ void of_tile(i64 chunk, i32 e, i64& row, i64& column) const {
        i64 across = (columns + c - 1) / c;
        row = chunk / across * b + e / c;
        column = chunk % across * c + e % c;
    }
};

// Entry (u, i) of the basis of n points, u and i below n.
__device__ __forceinline__ u32 entry(const u32* __restrict__ basis, i32 n, i32 u, i32 i) {
    if (n <= TABLED) return basis[u * n + i];
    i32 longs = (n + SHORT - 1) / SHORT;
    const u32* near = basis + u * 2 * (SHORT + longs) + i % SHORT;
    const u32* far = basis + u * 2 * (SHORT + longs) + 2 * SHORT + i / SHORT;
    u32 cosines = multiply_bits(far[0], near[0]);
    return subtract_bits(cosines, multiply_bits(far[longs], near[SHORT]));
}
