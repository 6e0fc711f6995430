// Strings of bits whose first bit is the most significant of the first byte.
#pragma once
#include "runtime/types.cuh"

__device__ __forceinline__ u32 swapped(u32 word) { return __byte_perm(word, 0, 0x0123); }

// Four bytes of which some are not there, but zero.
__device__ __forceinline__ u32 ragged_word(const u8* data, i64 nbytes, i64 byte) {
    u32 found = 0;
    for (int k = 0; k < 4; ++k) {
        found <<= 8;
        if (byte + k >= 0 && byte + k < nbytes) found |= data[byte + k];
    }
    return found;
}

// Reads bits from any place on; behind the last byte are zeros.
struct BitReader {
    const u8* data;
    i64 nbytes;
    u64 window;  // the next bits, the first highest
    i64 word;    // the next 32 bits behind them, counted from the aligned address up to `data`
    int have;    // bits in the window
    int skew;    // bytes from that address to `data`

    __device__ __forceinline__ BitReader(const u8* bytes, i64 count)
        : data(bytes), nbytes(count), window(0), word(0), have(0), skew((int)((u64)bytes & 3)) {}

    __device__ __forceinline__ u32 next_word() {
        i64 byte = 4 * word - skew;
        word += 1;
        if (byte >= 0 && byte + 4 <= nbytes) return swapped(*(const u32*)(data + byte));
        return ragged_word(data, nbytes, byte);
    }

    // Go to bit `at` >= 0: at least 33 bits are then in the window.
    __device__ __forceinline__ void seek(i64 at) {
        i64 from = at + 8 * skew;
        int shift = (int)(from & 31);
        word = from >> 5;
        u64 upper = next_word();
        window = (upper << 32 | next_word()) << shift;
        have = 64 - shift;
    }

    // See to it that the window has more than 32 bits.
    __device__ __forceinline__ void fill() {
        if (have <= 32) {
            window |= (u64)next_word() << (32 - have);
            have += 32;
        }
    }

    // Go on by fewer than 64 bits, which the window has.
    __device__ __forceinline__ void skip(int nbits) {
        window <<= nbits;
        have -= nbits;
    }

    __device__ __forceinline__ i64 at() const { return 32 * word - have - 8 * skew; }
};

// The 64 bits from bit `at` >= 0 on, the first highest; 0 behind the last byte. Not inlined, as it
// is seldom called.
static __device__ __noinline__ u64 peek(const u8* data, i64 nbytes, i64 at) {
    BitReader reader(data, nbytes);
    reader.seek(at);
    int missing = 64 - reader.have;  // below 32
    if (missing) reader.window |= (u64)reader.next_word() >> (32 - missing);
    return reader.window;
}

// Puts bits from any place of an array on. Words that hold bits of others too, those before the
// first bit or behind the last one, are joined to what is there; so the array must be zero before.
// In memory, words are in the order of bytes (`swap`), or else numbers.
template <bool swap>
struct BitWriter {
    u32* words;
    i64 size;  // of the words
    i64 word;  // where `acc` goes
    u64 acc;   // the bits that are not written, the last lowest
    int have;  // how many these are, below 32, with those of others
    bool shared;  // whether the word has bits of others before these

    __device__ __forceinline__ BitWriter(u32* array, i64 count, i64 at)
        : words(array), size(count), word(at >> 5), acc(0), have((int)(at & 31)),
          shared((at & 31) != 0) {}

    // Up to 32 bits, those above them zero.
    __device__ __forceinline__ void put(u32 bits, int nbits) {
        acc = acc << nbits | bits;
        have += nbits;
        if (have >= 32) {
            have -= 32;
            u32 full = (u32)(acc >> have);
            if (word < size) {
                if (swap) full = swapped(full);
                if (shared) atomicOr(words + word, full);
                else words[word] = full;
            }
            shared = false;
            word += 1;
        }
    }

    __device__ __forceinline__ void finish() {
        u32 rest = have ? (u32)acc << (32 - have) : 0u;
        if (rest && word < size) atomicOr(words + word, swap ? swapped(rest) : rest);
    }
};
