// Twins of the kernels of levels.py: levels of a norm at random, and back.
#include "kernels/numeric/floats.cuh"
#include "kernels/numeric/philox.cuh"
#include "runtime/report.cuh"

static const f64 TINY = 0x1p-100;  // norm from which on the factors stay within float32

// Four elements of a part of a tensor that begins with element `first`, a multiple of 4; the first of
// the norms is that of element `phase` before it. s: level of the norm.
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
        u32 held[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            i64 i = 4 * group + k;
            if (i >= n) break;
            if (i + phase >= end) {
                i64 b = (i + phase) / bucket;  // there is a norm for each bucket of the part
                end = (b + 1) * bucket;
                f64 norm = widened(norms[b]);
                tiny = norm < TINY;
                exact = norm > 0 ? __ddiv_rn((f64)s, norm) : 0.0;
                factor = tiny ? 0.0f : float_of(narrowed(exact));
            }
            u32 size = held[k] & MAGNITUDE;
            u32 bits = tiny ? narrowed(__dmul_rn(widened(size), exact))
                            : multiply_bits(size, bits_of(factor));
            // Below 2^-126 it rounds to level 0 whatever the random word is.
            f32 r = may_be_subnormal(bits) ? 0.0f : float_of(bits);
            u32 whole = (u32)__float2int_rz(r);
            f32 rest = __fsub_rn(r, __int2float_rn((i32)whole));
            i32 bound = __float2int_rz(__fmul_rn(rest, 0x1p31f));
            // r may pass s by the rounding of the norm.
            u32 level = min(whole + ((i32)(random.of[k] >> 1) < bound), s);
            out[i] = (T)(2 * level + (level && held[k] & SIGN_BIT));
        }
    }
}

template <class T>
__device__ __forceinline__ void dequantize_each(
    const T* symbols, i64 n, const u32* norms, i64 phase, i64 bucket, u32 s, f32 scale, i32 add,
    u32* out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        f64 norm = widened(norms[(i + phase) / bucket]);  // there is one for each bucket
        f64 step = norm > 0 ? __ddiv_rn(norm, (f64)s) : 0.0;
        u32 code = symbols[i], level = code >> 1;
        u32 size = norm < TINY ? narrowed(__dmul_rn((f64)(i32)level, step))
                               : multiply_bits(bits_of(__int2float_rn((i32)level)), narrowed(step));
        u32 value = size ^ (code & 1 ? SIGN_BIT : 0);
        out[i] = add ? add_bits(out[i], multiply_bits(bits_of(scale), value)) : value;
    }
}

extern "C" __global__ void quantize_part_uint8(
    const u32* x, i64 n, u64 seed, u64 first, const u32* norms, i64 phase, i64 bucket, u32 s, u8* out) {
    quantize_four(x, n, seed, first, norms, phase, bucket, s, out);
}
extern "C" __global__ void quantize_part_uint16(
    const u32* x, i64 n, u64 seed, u64 first, const u32* norms, i64 phase, i64 bucket, u32 s, u16* out) {
    quantize_four(x, n, seed, first, norms, phase, bucket, s, out);
}
extern "C" __global__ void quantize_part_uint32(
    const u32* x, i64 n, u64 seed, u64 first, const u32* norms, i64 phase, i64 bucket, u32 s, u32* out) {
    quantize_four(x, n, seed, first, norms, phase, bucket, s, out);
}
extern "C" __global__ void dequantize_part_uint8(
    const u8* symbols, i64 n, const u32* norms, i64 phase, i64 bucket, u32 s, f32 scale, i32 add,
    u32* out) {
    dequantize_each(symbols, n, norms, phase, bucket, s, scale, add, out);
}
extern "C" __global__ void dequantize_part_uint16(
    const u16* symbols, i64 n, const u32* norms, i64 phase, i64 bucket, u32 s, f32 scale, i32 add,
    u32* out) {
    dequantize_each(symbols, n, norms, phase, bucket, s, scale, add, out);
}
extern "C" __global__ void dequantize_part_uint32(
    const u32* symbols, i64 n, const u32* norms, i64 phase, i64 bucket, u32 s, f32 scale, i32 add,
    u32* out) {
    dequantize_each(symbols, n, norms, phase, bucket, s, scale, add, out);
}

// Whether symbols are those of levels up to s: reports the first that is not.
template <class T>
__device__ __forceinline__ void check_each(const T* symbols, i64 n, u32 s, u64* wrong) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP)
        if (symbols[i] > 2 * s + 1 || symbols[i] == 1) report(wrong, i);
}

extern "C" __global__ void check_levels_uint8(const u8* symbols, i64 n, u32 s, u64* wrong) {
    check_each(symbols, n, s, wrong);
}
extern "C" __global__ void check_levels_uint16(const u16* symbols, i64 n, u32 s, u64* wrong) {
    check_each(symbols, n, s, wrong);
}
extern "C" __global__ void check_levels_uint32(const u32* symbols, i64 n, u32 s, u64* wrong) {
    check_each(symbols, n, s, wrong);
}
