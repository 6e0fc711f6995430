// TernGrad's quantizer and its three packings; see ternary.py.
#include "kernels/numeric/floats.cuh"
#include "kernels/numeric/philox.cuh"
#include "runtime/report.cuh"

static const int TRITS = 5;  // codes in a byte of base3

// With a scale of 0 all elements are 0, and none is sent; 0/0 would be NaN.
__device__ __forceinline__ u32 divisor_of(u32 scale) { return scale ? scale : INFINITY_BITS; }

// Whether an element is sent: compares |x| / divisor, rounded once, with a random word.
__device__ __forceinline__ bool is_sent(u32 x, u32 divisor, u32 word) {
    u32 size = x & MAGNITUDE;
    if (size >= divisor) return true;
    // A quotient below 2^-126 never sends an element, so it may become 0.
    i32 bound = __float2int_rz(__fmul_rn(float_of(divide_bits(size, divisor)), 0x1p31f));
    return (i32)(word >> 1) < bound;
}

__device__ __forceinline__ u32 code_of(u32 x, u32 divisor, u32 word, u32 zero, u32 plus, u32 minus) {
    if (!is_sent(x, divisor, word)) return zero;
    return x & SIGN_BIT ? minus : plus;
}

// In these kernels, `out` has `nbytes` for the n codes.

// chapter: four codes in a byte, the first lowest.
extern "C" __global__ void chapter_bytes(
    const u32* x, i64 n, const u32* scale, u64 seed, i64 nbytes, u8* out) {
    u32 divisor = divisor_of(*scale);
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP) {
        Words random = philox(seed, (u64)at, ROUNDING);
        uint4 four = load_four(x, 4 * at, n, 0);  // zeros are not sent
        u32 byte = code_of(four.x, divisor, random.of[0], 0, 1, 2) |
                   code_of(four.y, divisor, random.of[1], 0, 1, 2) << 2 |
                   code_of(four.z, divisor, random.of[2], 0, 1, 2) << 4 |
                   code_of(four.w, divisor, random.of[3], 0, 1, 2) << 6;
        out[at] = (u8)byte;
    }
}

// terngrad: byte i holds codes i, i + nbytes, i + 2 * nbytes, i + 3 * nbytes, each plus one; after
// the n codes, pad codes 0, 1, 2, 3 fill the bytes.
extern "C" __global__ void strided_bytes(
    const u32* x, i64 n, const u32* scale, u64 seed, i64 nbytes, u8* out) {
    u32 divisor = divisor_of(*scale);
    for (i64 first = 4 * GCODEC_FIRST; first < nbytes; first += 4 * GCODEC_STEP) {
        u32 bytes[4] = {};
        for (int field = 0; field < 4; field++) {
            i64 start = field * nbytes + first;
            int phase = (int)(start & 3);
            Words one = philox(seed, (u64)start >> 2, ROUNDING);
            Words two = phase ? philox(seed, ((u64)start >> 2) + 1, ROUNDING) : one;
            for (int k = 0; k < 4; k++) {
                i64 i = start + k;
                u32 word = 0;
                for (int w = 0; w < 4; w++) {  // constant indices, so that the words stay in registers
                    if (phase + k == w) word = one.of[w];
                    if (phase + k == w + 4) word = two.of[w];
                }
                u32 code = i < n ? code_of(x[i], divisor, word, 1, 2, 0) : (u32)(i - n);
                bytes[k] |= code << 2 * field;  // a pad code is below 4 wherever it is stored
            }
        }
        for (int k = 0; k < 4; k++)
            if (first + k < nbytes) out[first + k] = (u8)bytes[k];
    }
}

// base3: five codes in a byte, the first with weight 1. Twenty elements make four bytes.
extern "C" __global__ void base3_bytes(
    const u32* x, i64 n, const u32* scale, u64 seed, i64 nbytes, u8* out) {
    u32 divisor = divisor_of(*scale);
    for (i64 group = GCODEC_FIRST; 20 * group < n; group += GCODEC_STEP) {
        u32 sums[4] = {}, power = 1;
        Words random = {};
#pragma unroll
        for (int k = 0; k < 4 * TRITS; k++) {
            i64 i = 20 * group + k;
            if (k % 4 == 0) random = philox(seed, (u64)i >> 2, ROUNDING);
            if (k % TRITS == 0) power = 1;
            if (i < n)
                sums[k / TRITS] += power * code_of(x[i], divisor, random.of[k % 4], 0, 1, 2);
            power *= 3;
        }
        for (int b = 0; b < 4; b++)
            if (4 * group + b < nbytes) out[4 * group + b] = (u8)sums[b];
    }
}

// Writes or adds the value of each code of base3. data: a byte for five of the n elements.
extern "C" __global__ void base3_levels(
    const u8* data, i64 n, const u32* level, f32 factor, i32 add, u32* out) {
    u32 plus = times(*level, factor, add), zero = times(0, factor, add);
    for (i64 at = GCODEC_FIRST; TRITS * at < n; at += GCODEC_STEP) {
        u32 byte = data[at];
        for (int k = 0; k < TRITS; k++) {
            u32 code = byte % 3;
            byte /= 3;
            i64 i = TRITS * at + k;
            if (i >= n) break;
            u32 value = code == 0 ? zero : plus ^ (code == 2 ? SIGN_BIT : 0);
            out[i] = add ? add_bits(out[i], value) : value;
        }
    }
}

// Reports the first byte before `plain` with the code 11 in a field of two bits.
extern "C" __global__ void code_11_bits(const u8* data, i64 plain, u64* wrong) {
    for (i64 at = GCODEC_FIRST; at < plain; at += GCODEC_STEP)
        if (data[at] & (data[at] >> 1) & 0x55) report(wrong, at);
}

// terngrad: checks the bytes from `plain` to `size`, four at most, one in a thread. The word reports
// twice the position of a byte with a code 11, plus 1 for a wrong pad code.
extern "C" __global__ void check_strided(const u8* data, i64 n, i64 plain, i64 size, u64* wrong) {
    i64 at = plain + GCODEC_FIRST;
    if (at >= size) return;
    for (int field = 0; field < 4; field++) {
        i64 index = field * size + at;
        u32 code = data[at] >> 2 * field & 3;
        if (index < n && code == 3) report(wrong, 2 * at);
        if (index >= n && (i64)code != index - n) report(wrong, 2 * at + 1);
    }
}

// base3: reports bytes above 242, and in the second word a last byte of `end` or more.
extern "C" __global__ void check_base3(const u8* data, i64 nbytes, u32 end, u64* wrong) {
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP) {
        if (data[at] > 242) report(&wrong[0], at);
        if (at == nbytes - 1 && data[at] >= end) report(&wrong[1], at);
    }
}

// The symbols 0, 2, 3 of the codes 0, 1, 2 in base3 bytes.
extern "C" __global__ void __launch_bounds__(256)
    base3_symbols(const u8* __restrict__ codes, i64 nbytes, i64 n, u8* __restrict__ out) {
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP) {
        u32 byte = codes[at];
        for (int k = 0; k < TRITS && TRITS * at + k < n; ++k, byte /= 3) {
            u32 code = byte % 3;
            out[TRITS * at + k] = (u8)(code + (code > 0));
        }
    }
}

// The base3 bytes of such symbols.
extern "C" __global__ void __launch_bounds__(256)
    base3_codes(const u8* __restrict__ symbols, i64 n, u8* __restrict__ out, i64 nbytes) {
    for (i64 at = GCODEC_FIRST; at < nbytes; at += GCODEC_STEP) {
        u32 byte = 0;
        for (int k = TRITS - 1; k >= 0; --k) {
            u32 symbol = TRITS * at + k < n ? symbols[TRITS * at + k] : 0;
            byte = 3 * byte + symbol - (symbol >> 1);
        }
        out[at] = (u8)byte;
    }
}
