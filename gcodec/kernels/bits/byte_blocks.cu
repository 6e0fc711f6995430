// Twin of byte_blocks.py: quantization to signed bytes in blocks that share a step.
#include "kernels/numeric/floats.cuh"

static const i64 SIZE = 256;  // values in a block

extern "C" __global__ void __launch_bounds__(256)
    quantize_bytes(const u32* __restrict__ values, i64 n, u32 largest_step, u32* __restrict__ steps,
                   u8* __restrict__ codes) {
    // SIZE threads; codes: n, steps: ceil(n / SIZE)
    __shared__ u32 tops[SIZE / 32];
    for (i64 first = blockIdx.x * SIZE; first < n; first += gridDim.x * SIZE) {
        i64 i = first + threadIdx.x;
        u32 bits = i < n ? values[i] : 0, top = bits & MAGNITUDE;
        for (int step = 16; step; step /= 2)
            top = max(top, __shfl_xor_sync(0xFFFFFFFFu, top, step));
        if ((threadIdx.x & 31) == 0) tops[threadIdx.x >> 5] = top;
        __syncthreads();
        for (int w = 0; w < SIZE / 32; ++w) top = max(top, tops[w]);
        __syncthreads();
        u32 step = min(divide_bits(top, bits_of(127.0f)), largest_step);
        if (threadIdx.x == 0) steps[first / SIZE] = step;
        if (i >= n) continue;  // only in the last round, in which no other thread waits
        i32 level = 0;
        if (step) {
            f32 ratio = float_of(divide_bits(bits, step));
            level = __float2int_rz(rintf(min(max(ratio, -127.0f), 127.0f)));
        }
        codes[i] = (u8)level;
    }
}

extern "C" __global__ void __launch_bounds__(256)
    dequantize_bytes(const u32* __restrict__ steps, const u8* __restrict__ codes, i64 n,
                     u32* __restrict__ out) {
    // codes, out: n; steps: ceil(n / SIZE)
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP)
        out[i] = multiply_bits(bits_of((f32)(i8)codes[i]), steps[i / SIZE]);
}
