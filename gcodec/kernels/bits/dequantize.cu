// Twins of the kernels of dequantize.py: codes of one or two bits to ±level and 0.
#include "kernels/numeric/floats.cuh"

enum Meaning { SENT_PLUS, MINUS_PLUS, SHIFTED };

// The bits of the value that a field stands for, which lies in the top bits of 32.
template <int WIDTH, int MEANING>
__device__ __forceinline__ u32 level_of(u32 field, u32 level, u32 zero) {
    if (WIDTH == 1) return level ^ (~field & SIGN_BIT);
    u32 upper = field, lower = field << 1, sent, minus;
    if (MEANING == SENT_PLUS) {
        sent = upper;
        minus = ~lower;
    } else if (MEANING == MINUS_PLUS) {
        sent = upper | lower;
        minus = upper;
    } else {
        sent = ~lower;
        minus = ~upper;
    }
    return sent & SIGN_BIT ? level ^ (minus & SIGN_BIT) : zero;
}

// Four elements, from i on, a multiple of four. data has a field for each of the n.
template <int WIDTH, bool LOW_FIRST, bool SPREAD, int MEANING>
__device__ __forceinline__ void dequantize_four(
    const u8* data, i64 n, i32 shift, const u32* level, f32 factor, i32 add, u32* out) {
    i64 i = 4 * GCODEC_FIRST;
    if (i >= n) return;
    u32 size = times(*level, factor, add), zero = times(0, factor, add);
    u32 byte = SPREAD ? 0 : data[i * WIDTH / 8], values[4];
    for (int k = 0; k < 4; k++) {
        if (SPREAD) byte = i + k < n ? data[i + k] : 0;
        int place = (int)(i & 7) + k;  // in bytes of eight
        if (SPREAD)
            place = shift;
        else if (WIDTH == 1)
            place = LOW_FIRST ? place : 7 - place;
        else
            place = LOW_FIRST ? 2 * k : 6 - 2 * k;
        u32 field = byte << (32 - WIDTH - place);  // place <= 8 - WIDTH
        values[k] = level_of<WIDTH, MEANING>(field, size, zero);
    }
    uint4 all = make_uint4(values[0], values[1], values[2], values[3]);
    if (add) {
        uint4 held = load_four(out, i, n, 0);
        all = make_uint4(add_bits(held.x, all.x), add_bits(held.y, all.y), add_bits(held.z, all.z),
                         add_bits(held.w, all.w));
    }
    store_four(out, i, n, all);
}

extern "C" __global__ void dequantize_1bit(
    const u8* data, i64 n, i32 shift, const u32* level, f32 factor, i32 add, u32* out) {
    dequantize_four<1, false, false, SENT_PLUS>(data, n, shift, level, factor, add, out);
}
extern "C" __global__ void dequantize_2bit(
    const u8* data, i64 n, i32 shift, const u32* level, f32 factor, i32 add, u32* out) {
    dequantize_four<2, false, false, SENT_PLUS>(data, n, shift, level, factor, add, out);
}
extern "C" __global__ void dequantize_low_first(
    const u8* data, i64 n, i32 shift, const u32* level, f32 factor, i32 add, u32* out) {
    dequantize_four<2, true, false, MINUS_PLUS>(data, n, shift, level, factor, add, out);
}
extern "C" __global__ void dequantize_in_bytes(
    const u8* data, i64 n, i32 shift, const u32* level, f32 factor, i32 add, u32* out) {
    dequantize_four<2, true, true, MINUS_PLUS>(data, n, shift, level, factor, add, out);
}
extern "C" __global__ void dequantize_strided(
    const u8* data, i64 n, i32 shift, const u32* level, f32 factor, i32 add, u32* out) {
    dequantize_four<2, true, true, SHIFTED>(data, n, shift, level, factor, add, out);
}
