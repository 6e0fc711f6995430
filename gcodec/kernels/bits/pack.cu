// Twins of the kernels of pack.py.
#include "runtime/report.cuh"

// Reports the first nonzero byte of data[at:n]. Only the spare bits of its first byte count.
extern "C" __global__ void check_zero(const u8* data, i64 at, i64 n, u32 spare, u64* wrong) {
    for (i64 i = at + GCODEC_FIRST; i < n; i += GCODEC_STEP)
        if (data[i] & (i == at ? spare : 0xFF)) report(wrong, i);
}

// The lowest bits of a pad code, which fit into a field.
__device__ __forceinline__ u32 pad_of(i64 pad, i32 width) { return (u32)pad & ((1u << width) - 1); }

// Contiguous fields: eight codes take `width` bytes, of nbytes in all. After the n codes follow pad
// codes 0, 1, 2, … with `count`, else zeros. `turn` reverses the bytes of words: it is 3 if words
// start with their most significant byte but are stored little-endian, else 0. In the former case
// nbytes is a multiple of four.
extern "C" __global__ void pack_groups(
    const u8* codes, i64 n, i64 total, i32 width, i32 msb, i32 count, i64 turn, u8* out, i64 nbytes) {
    for (i64 group = GCODEC_FIRST; group * width < nbytes; group += GCODEC_STEP) {
        u64 fields = 0;
        for (int k = 0; k < 8; k++) {
            i64 i = 8 * group + k;
            u64 code = i < n ? codes[i] : count && i < total ? pad_of(i - n, width) : 0;
            fields |= code << (msb ? (7 - k) * width : k * width);
        }
        for (int b = 0; b < width; b++) {
            i64 at = group * width + b;
            if (at < nbytes) out[at ^ turn] = (u8)(fields >> (msb ? 8 * (width - 1 - b) : 8 * b));
        }
    }
}

// Unpacks n codes of the `total` fields; reports the first wrong pad code among the others.
extern "C" __global__ void unpack_groups(
    const u8* data, i64 nbytes, i64 n, i64 total, i32 width, i32 msb, i32 count, u8* codes,
    u64* wrong) {
    for (i64 group = GCODEC_FIRST; 8 * group < total; group += GCODEC_STEP) {
        u64 fields = 0;
        for (int b = 0; b < width; b++) {
            i64 at = group * width + b;
            u64 byte = at < nbytes ? data[at] : 0;
            fields |= byte << (msb ? 8 * (width - 1 - b) : 8 * b);
        }
        for (int k = 0; k < 8; k++) {
            i64 i = 8 * group + k;
            u32 code = (u32)(fields >> (msb ? (7 - k) * width : k * width)) & ((1u << width) - 1);
            if (i < n) codes[i] = (u8)code;
            if (i >= n && i < total && count && code != pad_of(i - n, width)) report(wrong, i);
        }
    }
}

// Strided fields: byte i of `size` bytes contains fields i, i + size, i + 2 * size, …
extern "C" __global__ void pack_stride(
    const u8* codes, i64 n, i32 width, i32 msb, i32 count, u8* out, i64 size) {
    for (i64 at = GCODEC_FIRST; at < size; at += GCODEC_STEP) {
        u32 byte = 0;
        for (int field = 0; field < 8 / width; field++) {
            i64 i = field * size + at;
            u32 code = i < n ? codes[i] : count ? pad_of(i - n, width) : 0;
            byte |= code << (msb ? 8 - width * (field + 1) : width * field);
        }
        out[at] = (u8)byte;
    }
}

extern "C" __global__ void unpack_stride(
    const u8* data, i64 n, i32 width, i32 msb, i32 count, i64 size, u8* codes, u64* wrong) {
    for (i64 at = GCODEC_FIRST; at < size; at += GCODEC_STEP)
        for (int field = 0; field < 8 / width; field++) {
            i64 i = field * size + at;
            u32 code = data[at] >> (msb ? 8 - width * (field + 1) : width * field) & ((1u << width) - 1);
            if (i < n) codes[i] = (u8)code;
            if (i >= n && code != (count ? pad_of(i - n, width) : 0)) report(wrong, i);
        }
}
