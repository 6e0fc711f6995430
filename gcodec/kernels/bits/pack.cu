// Twins of the kernels of pack.py.
#include "runtime/report.cuh"

// Reports the first nonzero byte of data[at:n]. Only the spare bits of its first byte count.
extern "C" __global__ void check_zero(const u8* data, i64 at, i64 n, u32 spare, u64* wrong) {
    for (i64 i = at + GCODEC_FIRST; i < n; i += GCODEC_STEP)
        if (data[i] & (i == at ? spare : 0xFF)) report(wrong, i);
}

// Eight codes take `width` bytes, of nbytes in all. Zeros follow the n codes.
extern "C" __global__ void pack_groups(
    const u8* codes, i64 n, i32 width, i32 msb, u8* out, i64 nbytes) {
    for (i64 group = GCODEC_FIRST; group * width < nbytes; group += GCODEC_STEP) {
        u64 fields = 0;
        for (int k = 0; k < 8; k++) {
            i64 i = 8 * group + k;
            u64 code = i < n ? codes[i] : 0;
            fields |= code << (msb ? (7 - k) * width : k * width);
        }
        for (int b = 0; b < width; b++) {
            i64 at = group * width + b;
            if (at < nbytes) out[at] = (u8)(fields >> (msb ? 8 * (width - 1 - b) : 8 * b));
        }
    }
}

extern "C" __global__ void unpack_groups(
    const u8* data, i64 nbytes, i64 n, i32 width, i32 msb, u8* codes) {
    for (i64 group = GCODEC_FIRST; 8 * group < n; group += GCODEC_STEP) {
        u64 fields = 0;
        for (int b = 0; b < width; b++) {
            i64 at = group * width + b;
            u64 byte = at < nbytes ? data[at] : 0;
            fields |= byte << (msb ? 8 * (width - 1 - b) : 8 * b);
        }
        for (int k = 0; k < 8; k++) {
            i64 i = 8 * group + k;
            u64 code = fields >> (msb ? (7 - k) * width : k * width);
            if (i < n) codes[i] = (u8)(code & ((1u << width) - 1));
        }
    }
}
