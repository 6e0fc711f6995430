// Copies of chunks of a matrix to an array of whole chunks; see chunk_layout.py.
#include "runtime/types.cuh"

// A block of threads copies a chunk at a time, of height * width elements. out: `chunks` of them, from
// number `first` on; columns, rows: of the matrix, whose last row may be shorter; across: chunks beside
// each other.
extern "C" __global__ void __launch_bounds__(256)
    gather_chunks(const u32* __restrict__ x, i64 n, i64 columns, i32 height, i32 width, bool edge,
                  i64 across, i64 rows, i64 first, u32* __restrict__ out, i64 chunks) {
    for (i64 m = blockIdx.x; m < chunks; m += gridDim.x) {
        i64 above = (first + m) / across, left = (first + m - above * across) * width;
        i64 start = above * height * columns + left;
        i32 own_rows = (i32)min((i64)height, rows - above * height);
        i32 count = (i32)min((i64)width, min(columns - left, n - start));
#pragma unroll 1
        for (i32 e = (i32)threadIdx.x; e < height * width; e += (i32)blockDim.x) {
            i32 row = e / width, column = e - row * width;
            const u32* from = x + start + min(row, own_rows - 1) * columns;
            out[m * height * width + e] = column < count ? from[column] : edge ? from[count - 1] : 0;
        }
    }
}
