// Uniform scalar quantizers and reconstruction points; see scalar_quantize.py and rated_levels.py.
#include "kernels/numeric/reduce.cuh"
#include "kernels/quantize/level_errors.cuh"

static const i32 MOST = 126;  // the largest magnitude that has a symbol of its own
static const u32 FINE = 1u << 10;

// |x|·factor. Only this product may read or yield subnormal numbers; they become level 0 anyway.
__device__ __forceinline__ f32 steps_in(u32 x, u32 factor) {
    return float_of(multiply_bits(x & MAGNITUDE, factor));
}

// In all kernels, arrays of elements or symbols have n of them.

extern "C" __global__ void __launch_bounds__(256)
    plain_levels(const u32* __restrict__ x, i64 n, u32 factor, u8* __restrict__ out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        f32 y = min(steps_in(x[i], factor), 126.0f);
        i32 level = y >= 0.6f ? __float2int_rz(__fadd_rn(y, 0.4f)) : 0;
        out[i] = (u8)(level << 1);
    }
}

// Whole warps; sums: 8. `wide` gets the first `wide_size` symbols, not limited by the escape.
extern "C" __global__ void __launch_bounds__(256)
    rated_levels(const u32* __restrict__ x, i64 n, u32 factor, const u8* __restrict__ classes,
                 u8* __restrict__ out, u32* __restrict__ wide, i64 wide_size,
                 u64* __restrict__ sums) {
    LevelErrors errors;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        f32 d = (f32)max(44 - (i32)classes[i], 0);
        f32 square = __fmul_rn(__fmul_rn(d, d), (f32)(29.0 / 8192));
        f32 bound = min(__fadd_rn(0.5f, square), 1.65f);
        f32 lower = min(__fmul_rn(d, 0.08f), 0.45f);
        f32 y = steps_in(x[i], factor);
        i32 level = max(__float2int_rz(__fadd_rn(y, __fsub_rn(0.5f, lower))), 1);
        if (y < bound) level = 0;
        errors.add(level, __float2int_rz(__fmul_rn(__fsub_rn(y, (f32)level), (f32)FINE)));
        errors.escapes += level > MOST;
        u32 negative = x[i] > SIGN_BIT && level > 0;
        out[i] = level > MOST ? 2 * (MOST + 1) : (u8)(2 * level + negative);
        if (i < wide_size) wide[i] = 2 * (u32)level + negative;
    }
    errors.add_to(sums);
}

// Whole warps.
extern "C" __global__ void __launch_bounds__(256)
    random_squares(const u32* __restrict__ x, i64 n, u32 factor, u64* __restrict__ sum) {
    i64 own = 0;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        f32 y = steps_in(x[i], factor);
        f32 fraction = __fmul_rn(__fsub_rn(y, (f32)__float2int_rz(y)), (f32)FINE);
        u32 parts = (u32)__float2int_rz(fraction);
        own += parts * (FINE - parts);
    }
    add_to_sum(sum, own);
}

// The same in float64; a block sums a tile.
extern "C" __global__ void exact_random_squares(const u32* x, i64 n, f64 step, f64* sums) {
    __shared__ f64 lanes[LANES / 2];
    f64 sum = 0.0;
    for (int row = 0; row < TILE / LANES; row++) {
        i64 i = (i64)blockIdx.x * TILE + row * LANES + threadIdx.x;
        f64 y = i < n ? widened(x[i] & MAGNITUDE) / step : 0.0;
        f64 fraction = __dadd_rn(y, -floor(y));
        sum = __dadd_rn(sum, __dmul_rn(fraction, __dadd_rn(1.0, -fraction)));
    }
    sum = add_lanes(sum, lanes);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;  // each tile has a block
}

// points: 256.
extern "C" __global__ void __launch_bounds__(256)
    put_points(const u8* __restrict__ symbols, i64 n, const u32* __restrict__ points,
               u32* __restrict__ out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) out[i] = points[symbols[i]];
}

// ⌊(2·residue + 4·count) / (8·count)⌋, limited to a byte: the mean residue in 256ths, rounded.
__device__ __forceinline__ i64 moved(i64 count, i64 residue) {
    if (!count) return 0;
    i64 above = 2 * residue + 4 * count, below = 8 * count, quotient = above / below;
    quotient -= quotient * below > above;
    return min(max(quotient, (i64)-128), (i64)127);
}

// The points of wide symbols; sums: of `rated_levels`; unit: a 256th of the step. All points are
// normal numbers.
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
