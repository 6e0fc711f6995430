// Twins of the kernels of threshold.py: MXNet's quantisers, by a threshold.
#include "kernels/numeric/floats.cuh"
#include "runtime/report.cuh"

static const u32 NO_NUMBER = 0x7FC00000u;  // reaches no threshold, so the bits of padding are zero

struct Step {
    u32 code, size;  // what is sent, and the bits of what it decodes to
};

__device__ __forceinline__ Step step_2bit(u32 v, u32 threshold, u32 level) {
    if (less_equal(threshold, v)) return Step{3, level};
    if (less_equal(v, threshold ^ SIGN_BIT)) return Step{2, level ^ SIGN_BIT};
    return Step{0, 0};
}

__device__ __forceinline__ Step step_1bit(u32 v, u32 threshold, u32 level) {
    if (less(threshold, v)) return Step{1, level};
    return Step{0, level ^ SIGN_BIT};
}

// The codes of four elements of two bits each, the first in the upper bits.
__device__ __forceinline__ u32 codes_2bit(uint4 v, u32 threshold) {
    return step_2bit(v.x, threshold, 0).code << 6 | step_2bit(v.y, threshold, 0).code << 4 |
           step_2bit(v.z, threshold, 0).code << 2 | step_2bit(v.w, threshold, 0).code;
}

__device__ __forceinline__ u32 codes_1bit(uint4 v, u32 threshold) {
    return step_1bit(v.x, threshold, 0).code << 3 | step_1bit(v.y, threshold, 0).code << 2 |
           step_1bit(v.z, threshold, 0).code << 1 | step_1bit(v.w, threshold, 0).code;
}

// x + decay * residual
__device__ __forceinline__ uint4 corrected_four(uint4 x, uint4 residual, f32 decay) {
    u32 factor = bits_of(decay);
    return make_uint4(add_bits(x.x, multiply_bits(factor, residual.x)),
                      add_bits(x.y, multiply_bits(factor, residual.y)),
                      add_bits(x.z, multiply_bits(factor, residual.z)),
                      add_bits(x.w, multiply_bits(factor, residual.w)));
}

// Four elements to a byte. There are nbytes, some of which lie behind the n elements.
extern "C" __global__ void quantize_2bit(
    const u32* x, i64 n, const u32* threshold, u8* out, i64 nbytes) {
    u32 cut = *threshold;
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP)
        out[at] = (u8)codes_2bit(load_four(x, 4 * at, n, NO_NUMBER), cut);
}

// The same of v = x + decay * residual; v less what is decoded goes to `left`, maybe the residual.
extern "C" __global__ void quantize_2bit_residual(
    const u32* x, const u32* residual, u32* left, i64 n, f32 decay, const u32* threshold,
    const u32* level, u8* out, i64 nbytes) {
    u32 cut = *threshold, size = *level;
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP) {
        uint4 v = corrected_four(load_four(x, 4 * at, n, NO_NUMBER),
                                 load_four(residual, 4 * at, n, 0), decay);
        out[at] = (u8)codes_2bit(v, cut);
        v = make_uint4(subtract_bits(v.x, step_2bit(v.x, cut, size).size),
                       subtract_bits(v.y, step_2bit(v.y, cut, size).size),
                       subtract_bits(v.z, step_2bit(v.z, cut, size).size),
                       subtract_bits(v.w, step_2bit(v.w, cut, size).size));
        store_four(left, 4 * at, n, v);
    }
}

// Eight elements to a byte.
extern "C" __global__ void quantize_1bit(const u32* x, i64 n, f32 threshold, u8* out, i64 nbytes) {
    u32 cut = bits_of(threshold);
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP)
        out[at] = (u8)(codes_1bit(load_four(x, 8 * at, n, NO_NUMBER), cut) << 4 |
                       codes_1bit(load_four(x, 8 * at + 4, n, NO_NUMBER), cut));
}

extern "C" __global__ void quantize_1bit_residual(
    const u32* x, const u32* residual, u32* left, i64 n, f32 decay, f32 threshold, u8* out,
    i64 nbytes) {
    u32 cut = bits_of(threshold), size = bits_of(1.0f);
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP) {
        u32 byte = 0;
        for (i64 i = 8 * at; i < 8 * at + 8; i += 4) {
            uint4 v = corrected_four(load_four(x, i, n, NO_NUMBER), load_four(residual, i, n, 0), decay);
            byte = byte << 4 | codes_1bit(v, cut);
            v = make_uint4(subtract_bits(v.x, step_1bit(v.x, cut, size).size),
                           subtract_bits(v.y, step_1bit(v.y, cut, size).size),
                           subtract_bits(v.z, step_1bit(v.z, cut, size).size),
                           subtract_bits(v.w, step_1bit(v.w, cut, size).size));
            store_four(left, i, n, v);
        }
        out[at] = (u8)byte;
    }
}

// Reports the first byte in which a field of two bits is 01.
extern "C" __global__ void code_01_bits(const u8* data, i64 nbytes, u64* wrong) {
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP)
        if (data[at] & ~(data[at] >> 1) & 0x55) report(wrong, at);
}
