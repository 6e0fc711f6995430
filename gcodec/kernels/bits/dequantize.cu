// Twin of dequantize.py: codes of one or two bits to ±level and 0.
#include "kernels/numeric/floats.cuh"

enum Meaning { SENT_PLUS, MINUS_PLUS, SHIFTED };

// The bits of the value of a field, which is in the top bits of 32.
__device__ __forceinline__ u32 level_of(i32 width, i32 meaning, u32 field, u32 level, u32 zero) {
    if (width == 1) return level ^ (~field & SIGN_BIT);
    u32 upper = field, lower = field << 1, sent, minus;
    if (meaning == SENT_PLUS) {
        sent = upper;
        minus = ~lower;
    } else if (meaning == MINUS_PLUS) {
        sent = upper | lower;
        minus = upper;
    } else {
        sent = ~lower;
        minus = ~upper;
    }
    return sent & SIGN_BIT ? level ^ (minus & SIGN_BIT) : zero;
}

// A thread decodes four elements. data: a field for each of the n elements; see LevelCode for its
// layout and meaning.
extern "C" __global__ void dequantize_codes(
    const u8* data, i64 n, i32 width, bool low_first, bool spread, i32 shift, i32 meaning,
    const u32* level, f32 factor, i32 add, u32* out) {
    i64 i = 4 * GCODEC_FIRST;
    if (i >= n) return;
    u32 size = times(*level, factor, add), zero = times(0, factor, add);
    u32 byte = spread ? 0 : data[i * width / 8], values[4];
    for (int k = 0; k < 4; k++) {
        if (spread) byte = i + k < n ? data[i + k] : 0;
        int place = width * ((int)(i % (8 / width)) + k);  // of the field, if fields lie side by side
        if (spread)
            place = shift;
        else if (!low_first)
            place = 8 - width - place;
        u32 field = byte << (32 - width - place);  // place <= 8 - width
        values[k] = level_of(width, meaning, field, size, zero);
    }
    uint4 all = make_uint4(values[0], values[1], values[2], values[3]);
    if (add) {
        uint4 sums = load_four(out, i, n, 0);
        all = make_uint4(add_bits(sums.x, all.x), add_bits(sums.y, all.y), add_bits(sums.z, all.z),
                         add_bits(sums.w, all.w));
    }
    store_four(out, i, n, all);
}
