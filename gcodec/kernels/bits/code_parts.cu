// Twin of code_parts.py: parts of minifloat codes, one byte each.
#include "runtime/types.cuh"

extern "C" __global__ void __launch_bounds__(256)
    map_codes(const u8* codes, i32 per_byte, i64 n, const u8* __restrict__ table, u8* out) {
    // table: 256. A byte contains one code, or two, the first in the high half. If it contains one,
    // `out` may be the codes themselves.
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u8 code = per_byte == 1 ? codes[i] : codes[i >> 1] >> (i & 1 ? 0 : 4) & 15;
        out[i] = table[code];
    }
}

extern "C" __global__ void __launch_bounds__(256)
    join_parts(const u8* __restrict__ exponents, const u8* __restrict__ planes, i64 n, i32 mantissa,
               i32 sign, u8* __restrict__ out) {
    // A code has `mantissa` low bits, and the bit of its sign above `sign` bits.
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        u32 plane = planes[i], low = plane & ((1u << mantissa) - 1);
        out[i] = (u8)((u32)exponents[i] << mantissa | low | plane >> mantissa << sign);
    }
}
