// Minifloats: from float32 to codes of a few bits, and back; see minifloat.py.
//
// Codes of up to four bits, two in a byte, come from comparing the bits of |x| with thresholds; wider
// codes come from a quotient, as on the host. A table has the values of all 256 bytes, with sign and
// scale.
#include "kernels/numeric/floats.cuh"
#include "kernels/quantize/code_words.cuh"
#include "runtime/report.cuh"

static const i64 TOGETHER = 8;  // elements that a thread takes at once, from a multiple of 8 on
static const int MOST_STEPS = 7;

// Finds codes of up to four bits: the bits of |x| exceed a threshold for each code from 1 on.
struct Steps {
    i32 step[MOST_STEPS];
    __device__ __forceinline__ u32 code(u32 magnitude) const {
        u32 code = 0;
        for (int k = 0; k < MOST_STEPS; ++k) code += (i32)magnitude > step[k];
        return code;
    }
};

// Finds wider codes, by a divisor, which is infinite for a scale of 0, the bits of the mantissa, and
// the last code.
struct Quotients {
    u32 divisor, mantissa, top;
    __device__ __forceinline__ u32 code(u32 magnitude) const {
        u32 cut = 23 - mantissa, one = 127u << 23, quotient = divide_bits(magnitude, divisor);
        if (quotient < one + (1u << 23)) {
            // Below 2, the distance of two codes is that of two float32 numbers from 2^(cut + 1) on.
            u32 far = one + ((cut + 1) << 23);
            return min(bits_of(__fadd_rn(float_of(quotient), float_of(far))) - far, top);
        }
        // To the nearest code, ties to even; the exponent of 1 becomes 0.
        u32 odd = quotient >> cut & 1;
        return min((quotient + (1u << (cut - 1)) - 1 - one + odd) >> cut, top);
    }
};

// The thresholds of a rule of make_rule.
__device__ __forceinline__ Steps steps_of(const u32* rule) {
    Steps steps;
    for (int k = 0; k < MOST_STEPS; ++k) steps.step[k] = (i32)rule[k];
    return steps;
}

// The thresholds and the divisor of a scale, whose sign is ignored, and the values of all bytes; an
// invalid code gets 0. middles: lower bounds of |x|/scale for each code from 1 on, at most MOST_STEPS;
// levels: magnitudes of codes up to `last`. rule: MOST_STEPS + 1; points: 256. One block, 256 threads.
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
    bool is_code = k < 2 * sign && size <= last;
    points[k] = is_code ? multiply_bits(scale, levels[size]) | (k & sign ? SIGN_BIT : 0) : 0;
}

// The place of the k-th code in a word of eight, two in a byte, high half first, or a byte each.
__device__ __forceinline__ int place_of(int k, bool pairs) { return pairs ? 4 * (k ^ 1) : 8 * k; }

// The code of an element with its sign; code 0 has no sign.
template <class Rule>
__device__ __forceinline__ u32 signed_code(const Rule& rule, u32 bits, u32 width) {
    u32 code = rule.code(bits & MAGNITUDE);
    return code ? code | bits >> 31 << (width - 1) : 0;
}

// Copies the values of all bytes to shared memory.
__device__ __forceinline__ void copy_table(const u32* points, u32* table) {
    for (int k = threadIdx.x; k < 256; k += blockDim.x) table[k] = points[k];
    __syncthreads();
}

// Quantizes n elements of x, or if `adds`, of u = x + decay * residual; then u minus its value goes to
// `new_residual`, which may be `residual`. The other arguments are those of minifloat_codes.
template <bool PAIRS, class Rule>
__device__ __forceinline__ void quantize(const u32* x, const u32* residual, u32* new_residual,
                                         i64 n, bool adds,
                                         u32 decay, const Rule& rule, u32 width, const u32* points,
                                         u8* out, u32* top) {
    __shared__ u32 table[256];
    if (adds) copy_table(points, table);
    u32 most = 0;
    for (i64 i = TOGETHER * GCODEC_FIRST; i < n; i += TOGETHER * GCODEC_STEP) {
        u32 values[TOGETHER], terms[TOGETHER] = {}, codes[TOGETHER];  // terms become errors
        load_eight(x, i, n, values);
        if (adds) load_eight(residual, i, n, terms);
        for (int k = 0; k < TOGETHER; ++k) {
            if (adds) values[k] = add_bits(values[k], multiply_bits(decay, terms[k]));
            most = max(most, values[k] & MAGNITUDE);
            codes[k] = signed_code(rule, values[k], width);
            if (adds) terms[k] = subtract_bits(values[k], table[codes[k]]);  // a byte: below 256
        }
        u64 word = 0;
        for (int k = 0; k < TOGETHER; ++k) word |= (u64)codes[k] << place_of(k, PAIRS);
        store_codes(out, PAIRS ? i / 2 : i, PAIRS ? (n + 1) / 2 : n, PAIRS ? 4 : 8, word);
        if (adds) store_eight(new_residual, i, n, terms);
    }
    for (int step = 16; step; step /= 2)
        most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
    if ((threadIdx.x & 31) == 0 && most) atomicMax(top, most);
}

// out: the bytes of n codes; pairs: whether codes have up to four bits; mantissa, last: see Quotients;
// width: bits of a code, sign included; rule, points: of make_rule; top: raised to the bits of the
// largest magnitude.
extern "C" __global__ void __launch_bounds__(256)
    minifloat_codes(const u32* x, const u32* residual, u32* new_residual, i64 n, bool adds, u32 decay,
                    const u32* __restrict__ rule, bool pairs, u32 mantissa, u32 last, u32 width,
                    const u32* __restrict__ points, u8* out, u32* top) {
    Quotients quotients = {rule[MOST_STEPS], mantissa, last};
    if (pairs)
        quantize<true>(x, residual, new_residual, n, adds, decay, steps_of(rule), width, points, out,
                       top);
    else
        quantize<false>(x, residual, new_residual, n, adds, decay, quotients, width, points, out, top);
}

// The codes of elements i to i + 7; those after the last byte are 0.
__device__ __forceinline__ void unpack(const u8* bytes, i64 i, i64 nbytes, bool pairs, u32* codes) {
    u64 word = load_codes(bytes, pairs ? i / 2 : i, nbytes, pairs ? 4 : 8);
    for (int k = 0; k < TOGETHER; ++k)
        codes[k] = (u32)(word >> place_of(k, pairs)) & (pairs ? 15 : 255);
}

// Decodes n codes, two in a byte if `pairs`: writes their values, or adds `times` the values to out.
extern "C" __global__ void __launch_bounds__(256)
    minifloat_values(const u8* __restrict__ bytes, i64 n, bool pairs,
                     const u32* __restrict__ points, f32 times, bool add, u32* out) {
    __shared__ u32 table[256];
    copy_table(points, table);
    for (i64 i = TOGETHER * GCODEC_FIRST; i < n; i += TOGETHER * GCODEC_STEP) {
        u32 values[TOGETHER];
        unpack(bytes, i, pairs ? (n + 1) / 2 : n, pairs, values);
        for (int k = 0; k < TOGETHER; ++k) values[k] = table[values[k]];  // a byte: below 256
        store_eight(out, i, n, values, times, add);
    }
}

// Reports the first invalid code, as its number times 256 plus the code. With pairs, the half of a byte
// after the last code counts.
extern "C" __global__ void __launch_bounds__(256)
    first_wrong(const u8* __restrict__ bytes, i64 nbytes, bool pairs, u32 sign, u32 top, u64* wrong) {
    i64 n = pairs ? 2 * nbytes : nbytes;
    for (i64 i = TOGETHER * GCODEC_FIRST; i < n; i += TOGETHER * GCODEC_STEP) {
        u32 codes[TOGETHER];
        unpack(bytes, i, nbytes, pairs, codes);
        for (int k = 0; k < TOGETHER; ++k) {
            u32 code = codes[k], size = code & (sign - 1);
            if (size > top || code == sign || code >= 2 * sign) report(wrong, (i + k) << 8 | code);
        }
    }
}
