// Twin of scalar_quantize.py: uniform scalar quantisers, and the points that levels stand for.
#include "kernels/numeric/reduce.cuh"

static const i32 MOST = 126;  // the largest magnitude that has a symbol of its own
static const u32 FINE = 1u << 10;

// |x|·factor. It alone may take in or give subnormal numbers; the rest of them ends as 0 anyway.
__device__ __forceinline__ f32 steps_in(u32 x, u32 factor) {
    return float_of(multiply_bits(x & MAGNITUDE, factor));
}

// In all kernels: n elements, or symbols, in each array of them.

extern "C" __global__ void __launch_bounds__(256)
    plain_levels(const u32* __restrict__ x, i64 n, u32 factor, u8* __restrict__ out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        f32 y = min(steps_in(x[i], factor), 126.0f);
        i32 level = y >= 0.6f ? __float2int_rz(__fadd_rn(y, 0.4f)) : 0;
        out[i] = (u8)(level << 1);
    }
}

// Adds what the lanes of a warp have to an element of sums, of which each is an integer of 64 bits.
__device__ __forceinline__ void add_to(u64* sum, i64 own) {
    for (int step = 16; step; step /= 2) own += __shfl_xor_sync(0xFFFFFFFFu, own, step);
    if ((threadIdx.x & 31) == 0) atomicAdd(sum, (u64)own);
}

extern "C" __global__ void __launch_bounds__(256)
    rated_levels(const u32* __restrict__ x, i64 n, u32 factor, const u8* __restrict__ classes,
                 u8* __restrict__ out, u32* __restrict__ wide, i64 some, u64* __restrict__ sums) {
    // Whole warps; sums: 8. The first `some` symbols, not cut off, are in `wide` too.
    i64 counts[3] = {0, 0, 0}, rests[3] = {0, 0, 0}, squares = 0, escapes = 0;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        f32 d = (f32)max(44 - (i32)classes[i], 0);
        f32 square = __fmul_rn(__fmul_rn(d, d), (f32)(29.0 / 8192));
        f32 bound = min(__fadd_rn(0.5f, square), 1.65f);
        f32 lower = min(__fmul_rn(d, 0.08f), 0.45f);
        f32 y = steps_in(x[i], factor);
        i32 level = max(__float2int_rz(__fadd_rn(y, __fsub_rn(0.5f, lower))), 1);
        if (y < bound) level = 0;
        i32 rest = __float2int_rz(__fmul_rn(__fsub_rn(y, (f32)level), (f32)FINE));
        squares += (u32)rest * (u32)rest;
        for (int k = 0; k < 3; ++k) {
            bool here = k < 2 ? level == k + 1 : level > 2;
            counts[k] += here;
            rests[k] += here ? rest : 0;
        }
        escapes += level > MOST;
        u32 negative = x[i] > SIGN_BIT && level > 0;
        out[i] = level > MOST ? 2 * (MOST + 1) : (u8)(2 * level + negative);
        if (i < some) wide[i] = 2 * (u32)level + negative;
    }
    for (int k = 0; k < 3; ++k) {
        add_to(&sums[k], counts[k]);
        add_to(&sums[3 + k], rests[k]);
    }
    add_to(&sums[6], squares);
    add_to(&sums[7], escapes);
}

extern "C" __global__ void __launch_bounds__(256)
    random_squares(const u32* __restrict__ x, i64 n, u32 factor, u64* __restrict__ sum) {
    // Whole warps
    i64 own = 0;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        f32 y = steps_in(x[i], factor);
        f32 rest = __fmul_rn(__fsub_rn(y, (f32)__float2int_rz(y)), (f32)FINE);
        u32 parts = (u32)__float2int_rz(rest);
        own += parts * (FINE - parts);
    }
    add_to(sum, own);
}

// Of a tile, exactly but for float64. A block does a tile.
extern "C" __global__ void random_rests(const u32* x, i64 n, f64 step, f64* sums) {
    __shared__ f64 lanes[LANES / 2];
    f64 sum = 0.0;
    for (int row = 0; row < TILE / LANES; row++) {
        i64 i = (i64)blockIdx.x * TILE + row * LANES + threadIdx.x;
        f64 y = i < n ? widened(x[i] & MAGNITUDE) / step : 0.0;
        f64 rest = __dadd_rn(y, -floor(y));
        sum = __dadd_rn(sum, __dmul_rn(rest, __dadd_rn(1.0, -rest)));
    }
    sum = add_lanes(sum, lanes);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;  // there is a block for each tile
}

extern "C" __global__ void __launch_bounds__(256)
    put_points(const u8* __restrict__ symbols, i64 n, const u32* __restrict__ points,
               u32* __restrict__ out) {
    // points: 256
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) out[i] = points[symbols[i]];
}

extern "C" __global__ void __launch_bounds__(256)
    add_points(const u8* __restrict__ symbols, i64 n, const u32* __restrict__ points,
               u32* __restrict__ out) {
    // points: 256
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) out[i] = add_bits(out[i], points[symbols[i]]);
}

// ⌊(2·rest + 4·count) / (8·count)⌋, within bounds: the mean of rests of 1024ths in 256ths, rounded.
__device__ __forceinline__ i64 moved(i64 count, i64 rest) {
    if (!count) return 0;
    i64 above = 2 * rest + 4 * count, below = 8 * count, found = above / below;
    found -= found * below > above;
    return min(max(found, (i64)-128), (i64)127);
}

// The points of symbols that are not cut off, given the sums of `rated_levels`, and the 256th of what
// symbols count, of which all points are normal numbers.
extern "C" __global__ void __launch_bounds__(256)
    put_wide(const u32* __restrict__ wide, i64 n, const i64* __restrict__ sums, f64 unit,
             u32* __restrict__ out) {
    i64 moves[3];
    for (int k = 0; k < 3; ++k) moves[k] = moved(sums[k], sums[3 + k]);
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        i64 level = wide[i] >> 1;
        i64 move = level < 2 ? moves[0] : level == 2 ? moves[1] : moves[2];
        u32 point = level ? narrowed(__dmul_rn((f64)(256 * level + move), unit)) : 0;
        out[i] = point | (wide[i] << 31);
    }
}
