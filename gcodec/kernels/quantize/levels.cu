// Stochastic levels of a norm, and back; see levels.py.
#include "kernels/bits/widths.cuh"
#include "kernels/numeric/floats.cuh"
#include "kernels/numeric/philox.cuh"
#include "runtime/report.cuh"

static const f64 TINY = 0x1p-100;  // least norm whose factors stay within float32

// In all kernels, a symbol has `width` bytes: 1, 2 or 4. A part of a tensor begins with element
// `first`, a multiple of 4; `norms` begins with the bucket that starts `phase` elements earlier.
// s: level of the norm.

template <class T>
__device__ __forceinline__ void quantize_four(
    const u32* x, i64 n, u64 seed, u64 first, const u32* norms, i64 phase, i64 bucket, u32 s, T* out) {
    for (i64 group = GCODEC_FIRST; 4 * group < n; group += GCODEC_STEP) {
        Words random = philox(seed, (first >> 2) + (u64)group, ROUNDING);
        i64 end = -1;
        f64 exact = 0.0;
        f32 factor = 0.0f;
        bool tiny = false;
        uint4 four = load_four(x, 4 * group, n, 0);
        u32 values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            i64 i = 4 * group + k;
            if (i >= n) break;
            if (i + phase >= end) {
                i64 b = (i + phase) / bucket;  // each bucket of the part has a norm
                end = (b + 1) * bucket;
                f64 norm = widened(norms[b]);
                tiny = norm < TINY;
                exact = norm > 0 ? __ddiv_rn((f64)s, norm) : 0.0;
                factor = tiny ? 0.0f : float_of(narrowed(exact));
            }
            u32 size = values[k] & MAGNITUDE;
            u32 bits = tiny ? narrowed(__dmul_rn(widened(size), exact))
                            : multiply_bits(size, bits_of(factor));
            // A product below 2^-126 is rounded to level 0, whatever the random word is.
            f32 r = may_be_subnormal(bits) ? 0.0f : float_of(bits);
            u32 whole = (u32)__float2int_rz(r);
            f32 fraction = __fsub_rn(r, __int2float_rn((i32)whole));
            i32 bound = __float2int_rz(__fmul_rn(fraction, 0x1p31f));
            // r may exceed s because the norm is rounded.
            u32 level = min(whole + ((i32)(random.of[k] >> 1) < bound), s);
            out[i] = (T)(2 * level + (level && values[k] & SIGN_BIT));
        }
    }
}

extern "C" __global__ void quantize_part(
    const u32* x, i64 n, u64 seed, u64 first, const u32* norms, i64 phase, i64 bucket, u32 s, u8* out,
    i32 width) {
    if (width == 1) quantize_four(x, n, seed, first, norms, phase, bucket, s, out);
    else if (width == 2) quantize_four(x, n, seed, first, norms, phase, bucket, s, (u16*)out);
    else quantize_four(x, n, seed, first, norms, phase, bucket, s, (u32*)out);
}

extern "C" __global__ void dequantize_part(
    const u8* symbols, i32 width, i64 n, const u32* norms, i64 phase, i64 bucket, u32 s, f32 scale,
    i32 add, u32* out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        f64 norm = widened(norms[(i + phase) / bucket]);  // each bucket has a norm
        f64 step = norm > 0 ? __ddiv_rn(norm, (f64)s) : 0.0;
        u32 symbol = symbol_at(symbols, width, i), level = symbol >> 1;
        u32 size = norm < TINY ? narrowed(__dmul_rn((f64)(i32)level, step))
                               : multiply_bits(bits_of(__int2float_rn((i32)level)), narrowed(step));
        u32 value = size ^ (symbol & 1 ? SIGN_BIT : 0);
        out[i] = add ? add_bits(out[i], multiply_bits(bits_of(scale), value)) : value;
    }
}

// Reports the first symbol that is not that of a level up to s.
extern "C" __global__ void check_levels(const u8* symbols, i32 width, i64 n, u32 s, u64* wrong) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u32 symbol = symbol_at(symbols, width, i);
        if (symbol > 2 * s + 1 || symbol == 1) report(wrong, i);
    }
}
