// Codes of a table of numbers, with a scale for each block: from float32 to codes, and back; see
// blockwise.py.
#include "kernels/numeric/floats.cuh"
#include "kernels/quantize/code_words.cuh"

static const i64 TOGETHER = 8;  // elements of a thread
static const u32 ONE = 127u << 23, FINITE = INFINITY_BITS - 1;  // bits of 1 and of the largest float32
static const int CELL = 17;                                     // bits of a float32 that a cell drops
// What the scale of a block is: its largest magnitude, the reciprocal of its factor, or the factor.
static const i32 MAGNITUDES = 0, RECIPROCALS = 1;

// The block of an element, and of those that follow.
struct Blocks {
    i64 number, end, length;
    __device__ __forceinline__ Blocks(i64 i, i64 length) : number(i / length), length(length) {
        end = (number + 1) * length;
    }
    __device__ __forceinline__ i64 of(i64 i) {
        if (i >= end) ++number, end += length;
        return number;
    }
};

// Factors and scales of blocks by their largest magnitudes, tops; see FactorRule. If scales are
// magnitudes, elements of a partial block, the last one if `is_partial`, are divided by its scale,
// which is at least `least`; this number takes the place of its factor.
extern "C" __global__ void __launch_bounds__(256)
    block_factors(const u32* __restrict__ tops, i64 count, bool is_partial, u32 numerator, u32 least,
                  bool resets, i32 kind, u32* __restrict__ factors, u32* __restrict__ scales) {
    for (i64 b = GCODEC_FIRST; b < count; b += GCODEC_STEP) {
        u32 top = tops[b], divisor = max(top, least), factor = divide_bits(numerator, divisor);
        if (factor == INFINITY_BITS) factor = resets || !top ? ONE : FINITE;
        bool divides = kind == MAGNITUDES && is_partial && b == count - 1;
        factors[b] = divides ? divisor : factor;
        scales[b] = divides                ? divisor
                    : kind == MAGNITUDES   ? top
                    : kind == RECIPROCALS ? divide_bits(ONE, factor)
                                          : factor;
    }
}

// The bytes of n codes. Elements from `rest` on are divided by the factor of their block, others are
// multiplied by it. entries, first: of Cells, whose signs have `cells` each; zero: the code of 0, which
// a last half byte gets; nbytes: of `out`.
extern "C" __global__ void __launch_bounds__(256)
    table_codes(const u32* __restrict__ x, i64 n, i64 length, const u32* __restrict__ factors, i64 rest,
                const u64* __restrict__ entries, i32 cells, i32 first, u32 zero, bool pairs, u8* out,
                i64 nbytes) {
    for (i64 i = TOGETHER * GCODEC_FIRST; i < n; i += TOGETHER * GCODEC_STEP) {
        u32 values[TOGETHER];
        load_eight(x, i, n, values);
        Blocks blocks(i, length);
        u64 word = 0;
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {
            u32 code = zero;
            if (i + k < n) {
                u32 factor = factors[blocks.of(i + k)];
                u32 r = i + k < rest ? multiply_bits(values[k], factor) : divide_bits(values[k], factor);
                i32 cell = min(max((i32)((r & MAGNITUDE) >> CELL) - first, 0), cells - 1);
                u64 entry = entries[(r >> 31 ? cells : 0) + cell];
                bool is_above = (r & MAGNITUDE) > ((u32)entry & MAGNITUDE);
                code = (u32)(entry >> (is_above ? 40 : 32)) & 0xFF;
            }
            word |= (u64)code << (pairs ? 4 * (k ^ 1) : 8 * k);
        }
        store_codes(out, pairs ? i / 2 : i, nbytes, pairs ? 4 : 8, word);
    }
}

// Writes the values of n codes, or adds `times` each of them. numbers: of each code, 16 if `pairs`, or
// 256; they are multiplied or, if `divides`, divided by the scale of their block.
extern "C" __global__ void __launch_bounds__(256)
    table_values(const u8* __restrict__ codes, i64 nbytes, i64 n, i64 length,
                 const u32* __restrict__ scales, const u32* __restrict__ numbers, bool pairs,
                 bool divides, f32 times, bool add, u32* out) {
    __shared__ u32 table[256];
    for (int k = threadIdx.x; k < (pairs ? 16 : 256); k += blockDim.x) table[k] = numbers[k];
    __syncthreads();
    for (i64 i = TOGETHER * GCODEC_FIRST; i < n; i += TOGETHER * GCODEC_STEP) {
        u64 word = load_codes(codes, pairs ? i / 2 : i, nbytes, pairs ? 4 : 8);
        Blocks blocks(i, length);
        u32 values[TOGETHER] = {};
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {
            if (i + k >= n) continue;
            u32 number = table[(u32)(word >> (pairs ? 4 * (k ^ 1) : 8 * k)) & (pairs ? 15 : 255)];
            u32 scale = scales[blocks.of(i + k)];
            values[k] = divides ? divide_bits(number, scale) : multiply_bits(number, scale);
        }
        store_eight(out, i, n, values, times, add);
    }
}
