// Kernels that are wrong, each in its own way, and some that are right: what the shim makes of them.
#include "runtime/types.cuh"

// Sums of a block's threads, by a tree; without a barrier where `careless`.
extern "C" __global__ void tree(const u32* x, i32 careless, u32* out) {
    __shared__ u32 held[64];
    held[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
    __syncthreads();
    for (u32 width = 32; width >= 1; width /= 2) {
        if (threadIdx.x < width) held[threadIdx.x] += held[threadIdx.x + width];
        if (!careless) __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = held[0];
}

extern "C" __global__ void leaves_early(u32* out) {
    if (threadIdx.x == 3) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

extern "C" __global__ void splits(u32* out) {
    u32 found = 0;
    if (threadIdx.x < 5)
        found = __ballot_sync(0xFFFFFFFFu, 1);
    else
        __syncwarp();
    out[threadIdx.x] = found;
}

extern "C" __global__ void waits_for_none(u32* out) {
    if (threadIdx.x < 5) __syncwarp();
    out[threadIdx.x] = 1;
}

extern "C" __global__ void names_others(u32* out) { out[threadIdx.x] = __ballot_sync(1u, 1); }

extern "C" __global__ void asks_none(u32* out) {
    out[threadIdx.x] = threadIdx.x < 4 ? __shfl_sync(0xFu, threadIdx.x, 9) : 0;
}

extern "C" __global__ void passes_the_end(u32* out, i64 n) { out[n + threadIdx.x] = 1; }

extern "C" __global__ void reads_shared(u32* out) {
    __shared__ u32 held[4];
    out[threadIdx.x] = held[threadIdx.x % 4];
    held[threadIdx.x % 4] = 7;
}

extern "C" __global__ void arguments(const f32* x, f64 y, i32 i, u64 k, bool flag, f64* out) {
    out[0] = (f64)x[0] + y + (f64)i + (f64)k + (flag ? 0.5 : 0.0);
}

extern "C" __global__ void warps(u32* out) {
    u32 t = threadIdx.x, lane = t % 32;
    u32 sum = t;
    for (u32 width = 1; width < 32; width *= 2) {
        u32 other = __shfl_up_sync(0xFFFFFFFFu, sum, width);
        if (lane >= width) sum += other;
    }
    u32 swapped = __shfl_xor_sync(0xFFFFFFFFu, t, 5);
    u32 part = __shfl_down_sync(0xFFFFFFFFu, t, 3, 8);
    u64 wide = __shfl_sync(0xFFFFFFFFu, (u64)t << 40, 7);
    u32 odd = __ballot_sync(0xFFFFFFFFu, t & 1);
    u32 half = lane < 16 ? __ballot_sync(0xFFFFu, lane & 2) : 0;
    u32* mine = out + 6 * t;
    mine[0] = sum;
    mine[1] = swapped;
    mine[2] = part;
    mine[3] = (u32)(wide >> 40);
    mine[4] = odd;
    mine[5] = half;
}

extern "C" __global__ void subnormal(const f32* x, f32* out) {
    out[threadIdx.x] = x[threadIdx.x] * 2.0f;
}

extern "C" __global__ void counts(u32* out) { atomicAdd(out, __syncthreads_count(threadIdx.x % 3 == 0)); }
