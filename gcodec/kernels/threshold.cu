// Twins of the kernels of threshold.py: MXNet's quantisers, by a threshold.
#include "floats.cuh"
#include "report.cuh"

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

// Four elements to a byte of two bits each, the first in the upper bits. There are nbytes, some of
// which lie behind the n elements.
extern "C" __global__ void quantize_2bit(const u32* x, i64 n, f32 threshold, u8* out, i64 nbytes) {
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP) {
        u32 byte = 0;
        for (int k = 0; k < 4; k++) {
            i64 i = 4 * at + k;
            u32 v = i < n ? x[i] : NO_NUMBER;
            byte |= step_2bit(v, bits_of(threshold), 0).code << (6 - 2 * k);
        }
        out[at] = (u8)byte;
    }
}

// The same of v = x + decay * residual; residual becomes v less what is decoded.
extern "C" __global__ void quantize_2bit_residual(
    const u32* x, u32* residual, i64 n, f32 decay, f32 threshold, f32 level, u8* out, i64 nbytes) {
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP) {
        u32 byte = 0;
        for (int k = 0; k < 4; k++) {
            i64 i = 4 * at + k;
            if (i >= n) break;
            u32 v = add_bits(x[i], multiply_bits(bits_of(decay), residual[i]));
            Step step = step_2bit(v, bits_of(threshold), bits_of(level));
            residual[i] = subtract_bits(v, step.size);
            byte |= step.code << (6 - 2 * k);
        }
        out[at] = (u8)byte;
    }
}

// Eight elements to a byte.
extern "C" __global__ void quantize_1bit(const u32* x, i64 n, f32 threshold, u8* out, i64 nbytes) {
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP) {
        u32 byte = 0;
        for (int k = 0; k < 8; k++) {
            i64 i = 8 * at + k;
            u32 v = i < n ? x[i] : NO_NUMBER;
            byte |= step_1bit(v, bits_of(threshold), 0).code << (7 - k);
        }
        out[at] = (u8)byte;
    }
}

extern "C" __global__ void quantize_1bit_residual(
    const u32* x, u32* residual, i64 n, f32 decay, f32 threshold, u8* out, i64 nbytes) {
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP) {
        u32 byte = 0;
        for (int k = 0; k < 8; k++) {
            i64 i = 8 * at + k;
            if (i >= n) break;
            u32 v = add_bits(x[i], multiply_bits(bits_of(decay), residual[i]));
            Step step = step_1bit(v, bits_of(threshold), bits_of(1.0f));
            residual[i] = subtract_bits(v, step.size);
            byte |= step.code << (7 - k);
        }
        out[at] = (u8)byte;
    }
}

// Reports the first byte in which a field of two bits is 01.
extern "C" __global__ void code_01_bits(const u8* data, i64 nbytes, u64* wrong) {
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP)
        if (data[at] & ~(data[at] >> 1) & 0x55) report(wrong, at);
}
