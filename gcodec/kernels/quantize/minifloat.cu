// Twin of minifloat.py and minifloat_block.py: from float32 to codes of a few bits, and back.
//
// Codes of up to four bits, of which a byte holds two, are told by comparing bits of |x| with the
// least ones of each code; wider ones by a quotient, as on the host. What a code stands for comes
// from a table of all 256 bytes: sign, size and scale in it.
#include "kernels/numeric/floats.cuh"

static const i64 TOGETHER = 8;  // elements of a thread, from a multiple of as many on
static const int MOST_STEPS = 7;

// What tells codes: of formats of up to four bits, the bits that |x| must be above for each code
// from 1 on; of wider ones the divisor, infinite for a scale of 0, the bits of the mantissa, and
// the last code.
struct Steps {
    i32 step[MOST_STEPS];
    __device__ __forceinline__ u32 code(u32 magnitude) const {
        u32 code = 0;
        for (int k = 0; k < MOST_STEPS; ++k) code += (i32)magnitude > step[k];
        return code;
    }
};
struct Quotients {
    u32 divisor, mantissa, top;
    __device__ __forceinline__ u32 code(u32 magnitude) const {
        u32 cut = 23 - mantissa, one = 127u << 23, quotient = divide_bits(magnitude, divisor);
        if (quotient < one + (1u << 23)) {
            // Below 2, codes are as far from each other as float32 are from 2^(cut + 1) on.
            u32 far = one + ((cut + 1) << 23);
            return min(bits_of(__fadd_rn(float_of(quotient), float_of(far))) - far, top);
        }
        // To the nearest code, ties to even; the exponent of 1 becomes 0.
        u32 odd = quotient >> cut & 1;
        return min((quotient + (1u << (cut - 1)) - 1 - one + odd) >> cut, top);
    }
};

// A rule as make_rule writes it: steps, then the divisor.
__device__ __forceinline__ Steps steps_of(const u32* rule) {
    Steps found;
    for (int k = 0; k < MOST_STEPS; ++k) found.step[k] = (i32)rule[k];
    return found;
}

// What tells codes of a scale, whose sign does not matter, and what all bytes stand for; some are no
// codes. middles: what |x|/scale must be above for each code from 1 on, up to MOST_STEPS; levels:
// magnitudes of codes up to `last`. rule: MOST_STEPS + 1; points: 256. One block of 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    make_rule(const u32* __restrict__ number, const f64* __restrict__ middles, i32 steps,
              const u32* __restrict__ levels, u32 last, u32 width, u32* __restrict__ rule,
              u32* __restrict__ points) {
    u32 scale = *number & MAGNITUDE, k = threadIdx.x, sign = 1u << (width - 1);
    if ((i32)k < MOST_STEPS) {
        u32 least = INFINITY_BITS;
        if (scale && (i32)k < steps) {
            f64 middle = __dmul_rn(middles[k], widened(scale));
            u32 bits = narrowed(middle);
            least = bits + (widened(bits) < middle);
        }
        rule[k] = least - 1;
    }
    if ((i32)k == MOST_STEPS) rule[k] = scale ? scale : INFINITY_BITS;
    u32 size = k & (sign - 1);
    bool known = k < 2 * sign && size <= last;
    points[k] = known ? multiply_bits(scale, levels[size]) | (k & sign ? SIGN_BIT : 0) : 0;
}

// Elements i to i + 7, zeros behind the last. i is a multiple of 8 and x aligned to 16 bytes.
__device__ __forceinline__ void load(const u32* x, i64 i, i64 n, u32* found) {
    if (i + TOGETHER <= n) {
        uint4 first = *(const uint4*)(x + i), second = *(const uint4*)(x + i + 4);
        found[0] = first.x, found[1] = first.y, found[2] = first.z, found[3] = first.w;
        found[4] = second.x, found[5] = second.y, found[6] = second.z, found[7] = second.w;
        return;
    }
    for (i64 k = 0; k < TOGETHER; ++k) found[k] = i + k < n ? x[i + k] : 0;
}

__device__ __forceinline__ void store(u32* out, i64 i, i64 n, const u32* values) {
    if (i + TOGETHER <= n) {
        *(uint4*)(out + i) = make_uint4(values[0], values[1], values[2], values[3]);
        *(uint4*)(out + i + 4) = make_uint4(values[4], values[5], values[6], values[7]);
        return;
    }
    for (i64 k = 0; k < TOGETHER; ++k)
        if (i + k < n) out[i + k] = values[k];
}

// Codes of elements i to i + 7, of which those behind the last are 0; two in a byte, or a byte
// each. `out` is aligned to 8 bytes.
__device__ __forceinline__ void store_pairs(u8* out, i64 i, i64 n, const u32* codes) {
    u32 word = 0;
    for (int k = 0; k < 4; ++k) word |= (codes[2 * k] << 4 | codes[2 * k + 1]) << 8 * k;
    if (i + TOGETHER <= n) {
        *(u32*)(out + i / 2) = word;
        return;
    }
    for (i64 k = 0; k < 4; ++k)
        if (i + 2 * k < n) out[i / 2 + k] = (u8)(word >> 8 * k);
}
__device__ __forceinline__ void store_bytes(u8* out, i64 i, i64 n, const u32* codes) {
    u64 word = 0;
    for (int k = 0; k < 8; ++k) word |= (u64)codes[k] << 8 * k;
    if (i + TOGETHER <= n) {
        *(u64*)(out + i) = word;
        return;
    }
    for (i64 k = 0; k < TOGETHER; ++k)
        if (i + k < n) out[i + k] = (u8)codes[k];
}

// The code of an element with its sign, of which code 0 has none.
template <class Rule>
__device__ __forceinline__ u32 signed_code(const Rule& rule, u32 bits, u32 width) {
    u32 code = rule.code(bits & MAGNITUDE);
    return code ? code | bits >> 31 << (width - 1) : 0;
}

template <bool PAIRS, class Rule>
__device__ __forceinline__ void quantize(const u32* x, i64 n, const Rule& rule, u32 width, u8* out,
                                         u32* top) {
    u32 most = 0;
    for (i64 i = TOGETHER * GCODEC_FIRST; i < n; i += TOGETHER * GCODEC_STEP) {
        u32 values[TOGETHER], codes[TOGETHER];
        load(x, i, n, values);
        for (int k = 0; k < TOGETHER; ++k) {
            most = max(most, values[k] & MAGNITUDE);
            codes[k] = signed_code(rule, values[k], width);
        }
        PAIRS ? store_pairs(out, i, n, codes) : store_bytes(out, i, n, codes);
    }
    for (int step = 16; step; step /= 2)
        most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
    if ((threadIdx.x & 31) == 0 && most) atomicMax(top, most);
}

template <bool PAIRS, class Rule>
__device__ __forceinline__ void quantize_residual(const u32* x, const u32* kept, u32* left, i64 n,
                                                  u32 decay, const Rule& rule, u32 width,
                                                  const u32* points, u8* out) {
    for (i64 i = TOGETHER * GCODEC_FIRST; i < n; i += TOGETHER * GCODEC_STEP) {
        u32 values[TOGETHER], memory[TOGETHER], codes[TOGETHER];
        load(x, i, n, values);
        load(kept, i, n, memory);
        for (int k = 0; k < TOGETHER; ++k) {
            u32 u = add_bits(values[k], multiply_bits(decay, memory[k]));
            codes[k] = signed_code(rule, u, width);
            memory[k] = subtract_bits(u, points[codes[k]]);  // a byte: below 256
        }
        PAIRS ? store_pairs(out, i, n, codes) : store_bytes(out, i, n, codes);
        store(left, i, n, memory);
    }
}

// Of the next kernels: x, kept, left: n elements, of which the last two may be one array; out: the
// bytes of as many codes; width: bits of a code, sign included; top: raised to the bits of the largest magnitude; rule, points: of make_rule.

extern "C" __global__ void __launch_bounds__(256)
    minifloat_codes_pairs(const u32* x, i64 n, const u32* __restrict__ rule, u32 width, u8* out,
                          u32* top) {
    quantize<true>(x, n, steps_of(rule), width, out, top);
}

extern "C" __global__ void __launch_bounds__(256)
    minifloat_codes_bytes(const u32* x, i64 n, const u32* __restrict__ rule, u32 mantissa, u32 last,
                          u32 width, u8* out, u32* top) {
    Quotients how = {rule[MOST_STEPS], mantissa, last};
    quantize<false>(x, n, how, width, out, top);
}

extern "C" __global__ void __launch_bounds__(256)
    minifloat_residual_pairs(const u32* x, const u32* kept, u32* left, i64 n, u32 decay,
                             const u32* __restrict__ rule, u32 width,
                             const u32* __restrict__ points, u8* out) {
    __shared__ u32 table[256];
    for (int k = threadIdx.x; k < 256; k += blockDim.x) table[k] = points[k];
    __syncthreads();
    quantize_residual<true>(x, kept, left, n, decay, steps_of(rule), width, table, out);
}

extern "C" __global__ void __launch_bounds__(256)
    minifloat_residual_bytes(const u32* x, const u32* kept, u32* left, i64 n, u32 decay,
                             const u32* __restrict__ rule, u32 mantissa, u32 last, u32 width,
                             const u32* __restrict__ points, u8* out) {
    __shared__ u32 table[256];
    for (int k = threadIdx.x; k < 256; k += blockDim.x) table[k] = points[k];
    __syncthreads();
    Quotients how = {rule[MOST_STEPS], mantissa, last};
    quantize_residual<false>(x, kept, left, n, decay, how, width, table, out);
}

// Codes of elements i to i + 7, zeros behind the last; the bytes may begin anywhere.
__device__ __forceinline__ void load_codes(const u8* codes, i64 i, i64 n, bool pairs, u32* found) {
    const u8* here = codes + (pairs ? i / 2 : i);
    if (i + TOGETHER <= n && ((u64)here & 3) == 0) {
        u32 low = ((const u32*)here)[0], high = pairs ? 0 : ((const u32*)here)[1];
        for (int k = 0; k < TOGETHER; ++k)
            found[k] = pairs ? low >> (8 * (k / 2) + (k & 1 ? 0 : 4)) & 15
                             : (k < 4 ? low : high) >> 8 * (k & 3) & 255;
        return;
    }
    for (int k = 0; k < TOGETHER; ++k) {
        if (i + k >= n) {
            found[k] = 0;
        } else if (pairs) {
            found[k] = codes[(i + k) / 2] >> (k & 1 ? 0 : 4) & 15;
        } else {
            found[k] = codes[i + k];
        }
    }
}

// Of the next kernels: codes: the bytes of n codes, two in each if `pairs`; out: n elements.

extern "C" __global__ void __launch_bounds__(256)
    minifloat_values(const u8* __restrict__ codes, i64 n, bool pairs,
                     const u32* __restrict__ points, u32* out) {
    __shared__ u32 table[256];
    for (int k = threadIdx.x; k < 256; k += blockDim.x) table[k] = points[k];
    __syncthreads();
    for (i64 i = TOGETHER * GCODEC_FIRST; i < n; i += TOGETHER * GCODEC_STEP) {
        u32 found[TOGETHER];
        load_codes(codes, i, n, pairs, found);
        for (int k = 0; k < TOGETHER; ++k) found[k] = table[found[k]];  // a byte: below 256
        store(out, i, n, found);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    minifloat_values_add(const u8* __restrict__ codes, i64 n, bool pairs,
                         const u32* __restrict__ points, u32 times, u32* out) {
    __shared__ u32 table[256];
    for (int k = threadIdx.x; k < 256; k += blockDim.x) table[k] = points[k];
    __syncthreads();
    for (i64 i = TOGETHER * GCODEC_FIRST; i < n; i += TOGETHER * GCODEC_STEP) {
        u32 found[TOGETHER], sums[TOGETHER];
        load_codes(codes, i, n, pairs, found);
        load(out, i, n, sums);
        for (int k = 0; k < TOGETHER; ++k)
            sums[k] = add_bits(sums[k], multiply_bits(times, table[found[k]]));
        store(out, i, n, sums);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    any_wrong(const u8* __restrict__ codes, i64 n, bool pairs, u32 sign, u32 top, u64* first) {
    // Lowers `first` to the number of the first code that stands for nothing. With pairs, n may
    // count the half behind the last code.
    u64 found = ~0ull;
    for (i64 i = TOGETHER * GCODEC_FIRST; i < n; i += TOGETHER * GCODEC_STEP) {
        u32 some[TOGETHER];
        load_codes(codes, i, n, pairs, some);
        for (int k = 0; k < TOGETHER; ++k) {
            u32 size = some[k] & (sign - 1);
            if (size > top || some[k] == sign || some[k] >= 2 * sign) found = min(found, (u64)(i + k));
        }
    }
    if (found != ~0ull) atomicMin(first, found);
}
