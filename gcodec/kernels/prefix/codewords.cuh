// Words of universal codes: for each code, one rule that encodes and decodes a single value; see
// codewords.py. Kernels get rules by number and use them for symbols that are in no table.
#pragma once
#include "kernels/bits/bits.cuh"

static const i64 TRUNCATED = -1;
static const i64 CORRUPT = -2;
static const i64 BROKEN = -3;  // a block does not end where the next begins

// The status of an error at a bit: 64 times the bit, plus the number 1, 2 or 3 of the error.
__device__ __forceinline__ i64 status_of(i64 bit, i64 error) {
    const i64 most = (i64)1 << 56;  // a damaged seek table may state bits beyond any string
    return 64 * (bit < 0 ? 0 : bit < most ? bit : most) - error;
}

enum Rule { OMEGA, GAMMA, DELTA, EXPGOLOMB, GOLOMB, RICE, TABLE };
enum Mapping { PLAIN, ZIGZAG, SIGNED };

struct Code {
    int rule, mapping;
    u64 shift;  // added to a symbol; the addition wraps
    u64 parameter, top;
};

// `zeros` 0-bits, then the lowest `nbits` (1 to 128) bits of high:low.
struct Word {
    u64 zeros, high, low;
    int nbits;
};

__device__ __forceinline__ int bit_length(u64 value) { return 64 - __clzll((i64)value); }

static __device__ __noinline__ Word word_of(int rule, u64 value, u64 parameter) {
    Word word = {0, 0, 0, 1};
    if (rule == OMEGA) {
        while (value > 1) {
            int length = bit_length(value);
            if (word.nbits < 64) {  // and at least 1
                word.low |= value << word.nbits;
                word.high |= value >> (64 - word.nbits);
            } else {  // at most 65 + 6 + 3 bits
                word.high |= value << (word.nbits - 64);
            }
            word.nbits += length;
            value = (u64)(length - 1);
        }
    } else if (rule == GAMMA) {
        word.nbits = bit_length(value);
        word.zeros = (u64)(word.nbits - 1);
        word.low = value;
    } else if (rule == DELTA) {
        int length = bit_length(value), prefix = bit_length((u64)length), count = length - 1;
        word.zeros = (u64)(prefix - 1);
        word.nbits = prefix + count;
        word.low = 1;
        if (count > 0) {  // and at most 63
            word.low = (value ^ 1ull << count) | (u64)length << count;
            word.high = (u64)length >> (64 - count);
        }
    } else if (rule == EXPGOLOMB) {
        word.low = value + (1ull << parameter);
        word.high = word.low < value;
        word.nbits = word.high ? 65 : bit_length(word.low);
        word.zeros = (u64)(word.nbits - 1 - (int)parameter);
    } else if (rule == GOLOMB) {
        int bits = bit_length(parameter - 1);
        u64 few = bits ? 2 * (1ull << (bits - 1)) - parameter : 0;  // 2^64 wraps to 0
        word.zeros = value / parameter;
        u64 remainder = value - word.zeros * parameter;
        if (remainder < few) {  // so bits >= 1
            word.low = 1ull << (bits - 1) | remainder;
            word.nbits = bits;
        } else {
            word.low = remainder + few;
            word.nbits = bits + 1;
            if (bits == 64) word.high = 1;
            else word.low |= 1ull << bits;
        }
    } else {  // RICE; the words of TABLE are all in tables
        u64 first = 1ull << parameter;
        word.zeros = value >> parameter;
        word.low = first | (value & (first - 1));
        word.nbits = (int)parameter + 1;
    }
    return word;
}

// The word of a symbol; `before` is the number of sign bits that precede it, 0 or 1.
__device__ __forceinline__ Word spelled(const Code& code, u64 symbol, int* before, u32* sign) {
    *before = code.mapping == SIGNED;
    *sign = (u32)(symbol & 1);
    u64 value = symbol + code.shift;
    if (code.mapping == ZIGZAG) value = symbol - 2 * (symbol & 1);
    if (code.mapping == SIGNED) value = (symbol >> 1) + code.shift;
    return word_of(code.rule, value, code.parameter);
}

static const u64 FEW = 1ull << 40;  // more bits than any string has

// Number of bits of a word by its rule, with at most FEW zeros. Not inlined, since calls are rare.
static __device__ __noinline__ i64 spelled_nbits(const Code& code, u64 symbol) {
    int before;
    u32 sign;
    Word word = spelled(code, symbol, &before, &sign);
    return (i64)(word.zeros < FEW ? word.zeros : FEW) + word.nbits + before;
}

template <bool swap>
static __device__ __noinline__ BitWriter<swap> after_word(
    const Code& code, u64 symbol, BitWriter<swap> out
) {
    int before;
    u32 sign;
    Word word = spelled(code, symbol, &before, &sign);
    if (before) out.put(sign, 1);
    u64 zeros = word.zeros < FEW ? word.zeros : 0;
    for (; zeros > 32; zeros -= 32) out.put(0, 32);
    out.put(0, (int)zeros);
    for (int left = word.nbits; left > 0;) {  // at most the upper 32 of the remaining bits
        int start = (left - 1) / 32 * 32, count = left - start;  // 96, 64, 32 or 0
        u64 half = start >= 64 ? word.high : word.low;
        out.put((u32)(half >> (start & 63)) & 0xFFFFFFFFu >> (32 - count), count);
        left = start;
    }
    return out;
}

// Put a word by its rule. The writer is copied, so that the caller keeps it in registers.
template <bool swap>
__device__ __forceinline__ void spell(const Code& code, u64 symbol, BitWriter<swap>& out) {
    out = after_word(code, symbol, out);
}

// 0 to 64 bits from `at` on; bits from `end` on are 0.
__device__ __forceinline__ u64 take(const u8* data, i64 nbytes, i64 at, int count, i64 end) {
    i64 have = end - at;
    if (count <= 0 || have <= 0) return 0;
    u64 bits = peek(data, nbytes, at);
    if (have < 64) bits &= ~(~0ull >> have);
    return bits >> (64 - count);
}

// The number of zeros from `at` on, up to a one or the end.
__device__ __forceinline__ i64 run(const u8* data, i64 nbytes, i64 at, i64 end) {
    i64 first = at;
    while (at < end) {
        int zeros = __clzll((i64)peek(data, nbytes, at));
        at += zeros;
        if (zeros < 64) break;
    }
    return (at < end ? at : end) - first;
}

// Decodes the word at bit `at` of a string that ends at bit `end`, at <= end <= 8 * nbytes. Returns the
// bit after the word; CORRUPT if the bits up to `end` do not begin the word of any value; TRUNCATED if
// they begin a word and end within it. Bits after `end` count as zeros.
__device__ __forceinline__ i64 value_of(
    const Code& code, const u8* data, i64 nbytes, i64 at, i64 end, u64* value
) {
    int rule = code.rule;
    u64 parameter = code.parameter;
    *value = 0;
    if (rule == OMEGA) {
        u64 group = 1;
        while (at < end) {
            if (!take(data, nbytes, at, 1, end)) {
                *value = group;
                return at + 1;
            }
            if (group > 63) return CORRUPT;  // a group of more than 64 bits
            int count = (int)group + 1;
            group = take(data, nbytes, at, count, end);
            at += count;
        }
        return TRUNCATED;
    }
    if (rule == TABLE)  // any bits begin a word of a complete code
        return parameter && at < end ? CORRUPT : TRUNCATED;
    i64 zeros = run(data, nbytes, at, end);
    if (rule == GAMMA) {
        if (zeros > 63) return CORRUPT;
        i64 after = at + 2 * zeros + 1;
        if (after > end) return TRUNCATED;
        *value = take(data, nbytes, at + zeros, (int)zeros + 1, end);
        return after;
    }
    if (rule == DELTA) {
        if (zeros > 6) return CORRUPT;
        i64 length = (i64)take(data, nbytes, at + zeros, (int)zeros + 1, end);
        if (length > 64) return CORRUPT;
        at += 2 * zeros + 1;
        if (at > end || at + length - 1 > end) return TRUNCATED;  // else length is at least 1
        int count = (int)length - 1;
        *value = 1ull << count | take(data, nbytes, at, count, end);
        return at + count;
    }
    if (rule == EXPGOLOMB) {
        i64 count = zeros + (i64)parameter;  // bits after the first one
        if (count > 64) return CORRUPT;
        at += zeros + 1;
        u64 low = take(data, nbytes, at, (int)count, end), least = 1ull << parameter;
        if (count == 64 && low >= least) return CORRUPT;
        if (at + count > end) return TRUNCATED;
        u64 first = count < 64 ? 1ull << count : 0;  // 2^64 wraps to 0, and so does the difference
        *value = first + low - least;
        return at + count;
    }
    if (rule == GOLOMB) {
        int bits = bit_length(parameter - 1);
        u64 few = bits ? 2 * (1ull << (bits - 1)) - parameter : 0;
        u64 quotient = (u64)zeros;
        if (quotient > ~0ull / parameter) return CORRUPT;
        at += zeros + 1;
        i64 after = at + bits;
        u64 remainder = take(data, nbytes, at, bits - 1, end);
        if (remainder < few) after -= 1;  // so bits >= 1
        else remainder = take(data, nbytes, at, bits, end) - few;
        u64 multiple = quotient * parameter;
        if (remainder > ~0ull - multiple) return CORRUPT;
        if (after > end) return TRUNCATED;
        *value = multiple + remainder;
        return after;
    }
    // RICE
    int k = (int)parameter;
    if ((u64)zeros > ~0ull >> k) return CORRUPT;
    at += zeros + 1;
    if (at + k > end) return TRUNCATED;
    *value = (u64)zeros << k | take(data, nbytes, at, k, end);
    return at + k;
}

// Decodes one symbol by its rule; returns the next bit, or TRUNCATED or CORRUPT.
__device__ __forceinline__ i64 read_symbol(
    const Code& code, const u8* data, i64 nbytes, i64 at, i64 end, u64* symbol
) {
    u64 sign = 0, value;
    if (code.mapping == SIGNED) {
        if (at >= end) return TRUNCATED;
        sign = take(data, nbytes, at, 1, end);
        at += 1;
    }
    i64 after = value_of(code, data, nbytes, at, end, &value);
    if (after < 0) return after;
    if (value > code.top && code.mapping != SIGNED) return CORRUPT;  // so nothing below wraps
    if (code.mapping == ZIGZAG) {
        *symbol = value + 2 * (value & 1);
    } else if (code.mapping == SIGNED) {
        u64 level = value - code.shift;
        // There is no -0. With a negative shift, level 0 is a sum that wraps.
        if (level > code.top >> 1 || (level == 0 && (sign || (i64)code.shift < 0))) return CORRUPT;
        *symbol = 2 * level + sign;
    } else {
        *symbol = value - code.shift;
    }
    return *symbol > code.top ? CORRUPT : after;
}
