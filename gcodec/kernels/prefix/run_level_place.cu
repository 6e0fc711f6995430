// Run–level pairs to a tensor: symbols, or the values of levels, at their positions, counted from 1.
#include "kernels/bits/widths.cuh"
#include "kernels/numeric/floats.cuh"

static const f64 TINY = 0x1p-100;  // least norm whose factors are normal float32 numbers
static const i64 LEFT = 64;        // a status is 64 times the pair, plus the number of an error
static const i64 FAR = 2, SILENT = 4;

// Whether a position is that of an element; if not, reports the error.
__device__ __forceinline__ bool inside(i64 position, i64 n, i64 pair, i64* status) {
    if (position >= 1 && position <= n) return true;
    atomicMin(status, LEFT * pair + FAR);
    return false;
}

// Writes `*count` symbols of `width` bytes to n elements of the same type.
extern "C" __global__ void __launch_bounds__(256) place_pairs(
    const u8* symbols, i32 width, const i64* positions, const i64* count, i64 room, u8* out, i64 n, i64* status
) {
    i64 all = *count < room ? *count : room;
    for (i64 i = GCODEC_FIRST; i < all; i += GCODEC_STEP) {
        i64 at = positions[i] - 1;
        if (!inside(at + 1, n, i, status)) continue;
        put_symbol(out, width, at, symbol_at(symbols, width, i));
    }
}

// `norms` has a norm for each bucket of n elements.
extern "C" __global__ void __launch_bounds__(256) place_values(
    const u8* symbols, i32 width, const i64* positions, const i64* count, i64 room,
    const f32* norms, i64 bucket, u32 s, f32* out, i64 n, i64* status
) {
    const u32* norm_bits = (const u32*)norms;
    u32* values = (u32*)out;
    i64 all = *count < room ? *count : room;
    for (i64 i = GCODEC_FIRST; i < all; i += GCODEC_STEP) {
        i64 at = positions[i] - 1;
        if (!inside(at + 1, n, i, status)) continue;
        f64 norm = widened(norm_bits[at / bucket]);
        if (norm == 0) {
            atomicMin(status, LEFT * i + SILENT);
            continue;
        }
        u32 symbol = symbol_at(symbols, width, i);
        f64 level = (f64)(symbol >> 1), step = norm / (f64)s;
        u32 value = norm < TINY ? narrowed(level * step)
                                : bits_of(__fmul_rn((f32)level, (f32)step));
        values[at] = value ^ symbol << 31;
    }
}
