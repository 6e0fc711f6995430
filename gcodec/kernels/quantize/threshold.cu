// MXNet's quantizers by a threshold; see threshold.py.
#include "kernels/numeric/floats.cuh"
#include "runtime/report.cuh"

static const u32 NO_NUMBER = 0x7FC00000u;  // reaches no threshold, so the bits of padding are 0

struct Step {
    u32 code, size;  // the code, and the bits of its value
};

struct TwoBit {
    static const int WIDTH = 2;
    static __device__ __forceinline__ Step step(u32 v, u32 threshold, u32 level) {
        if (less_equal(threshold, v)) return Step{3, level};
        if (less_equal(v, threshold ^ SIGN_BIT)) return Step{2, level ^ SIGN_BIT};
        return Step{0, 0};
    }
};

struct OneBit {
    static const int WIDTH = 1;
    static __device__ __forceinline__ Step step(u32 v, u32 threshold, u32 level) {
        if (less(threshold, v)) return Step{1, level};
        return Step{0, level ^ SIGN_BIT};
    }
};

// The codes of four elements, the first in the highest bits.
template <class Rule>
__device__ __forceinline__ u32 codes_of(uint4 v, u32 threshold) {
    const int width = Rule::WIDTH;
    return Rule::step(v.x, threshold, 0).code << 3 * width |
           Rule::step(v.y, threshold, 0).code << 2 * width |
           Rule::step(v.z, threshold, 0).code << width | Rule::step(v.w, threshold, 0).code;
}

template <class Rule>
__device__ __forceinline__ u32 left_over(u32 v, u32 threshold, u32 level) {
    return subtract_bits(v, Rule::step(v, threshold, level).size);
}

// Writes the packed codes of n elements of x, or if `adds`, of v = x + decay * residual; the last of
// `nbytes` may lie beyond them. Then v minus its decoded value goes to `new_residual`, which may be the
// residual.
template <class Rule>
__device__ __forceinline__ void quantize(const u32* x, const u32* residual, u32* new_residual,
                                         i64 n, bool adds, f32 decay, u32 threshold, u32 level,
                                         u8* out, i64 nbytes) {
    const i64 each = 8 / Rule::WIDTH;  // codes of a byte
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP) {
        u32 byte = 0;
        for (i64 i = each * at; i < each * (at + 1); i += 4) {
            uint4 v = load_four(x, i, n, NO_NUMBER);
            if (adds) v = add_multiples(v, bits_of(decay), load_four(residual, i, n, 0));
            byte = byte << 4 | codes_of<Rule>(v, threshold);
            if (adds)
                store_four(new_residual, i, n,
                           make_uint4(left_over<Rule>(v.x, threshold, level),
                                      left_over<Rule>(v.y, threshold, level),
                                      left_over<Rule>(v.z, threshold, level),
                                      left_over<Rule>(v.w, threshold, level)));
        }
        out[at] = (u8)byte;
    }
}

extern "C" __global__ void quantize_2bit(
    const u32* x, const u32* residual, u32* new_residual, i64 n, bool adds, f32 decay,
    const u32* threshold,
    const u32* level, u8* out, i64 nbytes) {
    quantize<TwoBit>(x, residual, new_residual, n, adds, decay, *threshold, *level, out, nbytes);
}
extern "C" __global__ void quantize_1bit(
    const u32* x, const u32* residual, u32* new_residual, i64 n, bool adds, f32 decay,
    f32 threshold, u8* out,
    i64 nbytes) {
    u32 level = bits_of(1.0f);
    quantize<OneBit>(x, residual, new_residual, n, adds, decay, bits_of(threshold), level, out, nbytes);
}

// Reports the first byte with the code 01 in a field of two bits.
extern "C" __global__ void code_01_bits(const u8* data, i64 nbytes, u64* wrong) {
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP)
        if (data[at] & ~(data[at] >> 1) & 0x55) report(wrong, at);
}
