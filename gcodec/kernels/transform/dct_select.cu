// Twin of dct_select.py: the k largest coefficients of each chunk.
#include "kernels/transform/dct_select.cuh"

extern "C" __global__ void __launch_bounds__(256, 4)
    select_largest(const u32* __restrict__ y, i64 chunks, i32 size, i32 k, i32* __restrict__ places,
                   u32* __restrict__ values, u32* __restrict__ top) {
    // 256 threads; y: chunks·size elements, places and values: chunks·k, 1 <= k <= size
    for (i64 chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x)
        select_chunk(y + chunk * size, size, k, places + chunk * k, values + chunk * k, top);
}
