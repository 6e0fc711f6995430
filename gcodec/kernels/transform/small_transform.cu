// Twin of small_transform.py: linear transforms of contiguous small chunks.
#include "kernels/numeric/floats.cuh"

static const int TILE = 1 << 11;  // values of whole chunks that a block processes at a time

// Transforms a tile along an axis of n values, with a distance of `stride` values.
__device__ __forceinline__ void along(const u32* x, u32 count, u32 stride, u32 n, const u32* matrix,
                                      u32* out) {
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u32 j = i / stride % n, sum = 0;
        for (u32 v = 0, at = i - j * stride; v < n; ++v, at += stride)
            sum = add_bits(sum, multiply_bits(x[at], matrix[v * n + j]));
        out[i] = sum;
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(256)
    transform(const u32* x, i64 n, i32 a, i32 b, i32 c, const u32* __restrict__ matrices, u32* out) {
    // n: a multiple of a * b * c; matrices: a * a + b * b + c * c; out may be x.
    __shared__ u32 tiles[2][TILE];
    i64 tile = TILE / (a * b * c) * (a * b * c);
    for (i64 start = blockIdx.x * tile; start < n; start += gridDim.x * tile) {
        u32 count = (u32)min(tile, n - start);
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) tiles[0][i] = x[start + i];
        __syncthreads();
        int now = 0;
        u32 stride = 1;
        const u32* matrix = matrices + a * a + b * b + c * c;
        for (int axis = 0; axis < 3; ++axis) {
            u32 points = (u32)(axis == 0 ? c : axis == 1 ? b : a);
            matrix -= points * points;
            if (points == 1) continue;
            along(tiles[now], count, stride, points, matrix, tiles[now ^ 1]);
            now ^= 1;
            stride *= points;
        }
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) out[start + i] = tiles[now][i];
        __syncthreads();
    }
}
