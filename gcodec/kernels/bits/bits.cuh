// Bit strings. The first bit of a string is the most significant bit of its first byte.
#pragma once
#include "runtime/types.cuh"

__device__ __forceinline__ u32 swapped(u32 word) { return __byte_perm(word, 0, 0x0123); }

// A word of four bytes; bytes outside the data are zero.
__device__ __forceinline__ u32 ragged_word(const u8* data, i64 nbytes, i64 byte) {
    u32 word = 0;
    for (int k = 0; k < 4; ++k) {
        word <<= 8;
        if (byte + k >= 0 && byte + k < nbytes) word |= data[byte + k];
    }
    return word;
}

// Reads bits from any offset on; zeros follow the last byte.
struct BitReader {
    const u8* data;
    i64 nbytes;
    u64 window;  // the next bits, the first highest
    i64 word;    // number of the 32-bit word after the window, from the aligned address below `data`
    int have;    // bits in the window
    int skew;    // bytes from the aligned address to `data`

    __device__ __forceinline__ BitReader(const u8* bytes, i64 count)
        : data(bytes), nbytes(count), window(0), word(0), have(0), skew((int)((u64)bytes & 3)) {}

    __device__ __forceinline__ u32 next_word() {
        i64 byte = 4 * word - skew;
        word += 1;
        if (byte >= 0 && byte + 4 <= nbytes) return swapped(*(const u32*)(data + byte));
        return ragged_word(data, nbytes, byte);
    }

    // Moves to bit `at` >= 0; the window then has at least 33 bits.
    __device__ __forceinline__ void seek(i64 at) {
        i64 from = at + 8 * skew;
        int shift = (int)(from & 31);
        word = from >> 5;
        u64 upper = next_word();
        window = (upper << 32 | next_word()) << shift;
        have = 64 - shift;
    }

    // Refills the window to more than 32 bits.
    __device__ __forceinline__ void fill() {
        if (have <= 32) {
            window |= (u64)next_word() << (32 - have);
            have += 32;
        }
    }

    // Skips fewer than 64 bits, which must be in the window.
    __device__ __forceinline__ void skip(int nbits) {
        window <<= nbits;
        have -= nbits;
    }

    __device__ __forceinline__ i64 at() const { return 32 * word - have - 8 * skew; }
};

// The 64 bits from bit `at` >= 0 on, the first highest; zeros follow the last byte. Not inlined,
// because calls are rare.
static __device__ __noinline__ u64 peek(const u8* data, i64 nbytes, i64 at) {
    BitReader reader(data, nbytes);
    reader.seek(at);
    int missing = 64 - reader.have;  // below 32
    if (missing) reader.window |= (u64)reader.next_word() >> (32 - missing);
    return reader.window;
}

// Writes bits from any offset of an array on. Other threads may write the bits preceding the first
// or following the last one, so their words are combined by atomic OR, and the array must be zero at
// first. With `swap`, the bytes of a word are in the order of the string; else words are numbers.
template <bool swap>
struct BitWriter {
    u32* words;
    i64 size;  // number of words
    i64 word;  // index of the word that `acc` belongs to
    u64 acc;   // the bits that have not been written, the last lowest
    int have;  // number of these bits, below 32, including those of other threads
    bool shared;  // whether the word starts with bits of another thread

    __device__ __forceinline__ BitWriter(u32* array, i64 count, i64 at)
        : words(array), size(count), word(at >> 5), acc(0), have((int)(at & 31)),
          shared((at & 31) != 0) {}

    // Appends up to 32 bits; the bits above them must be zero.
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
        u32 last = have ? (u32)acc << (32 - have) : 0u;
        if (last && word < size) atomicOr(words + word, swap ? swapped(last) : last);
    }
};
