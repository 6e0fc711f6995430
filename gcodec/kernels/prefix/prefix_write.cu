// The writer of prefix codes. A first kernel measures tiles of 4096 symbols; a scan of their lengths
// yields the bit of each tile; a second kernel writes them. Each thread puts the words of 16 symbols.
#include "kernels/prefix/codewords.cuh"
#include "kernels/prefix/symbols.cuh"

static const int SINGLES = 256;
static const int ROOM = 2048;  // 32-bit words of a tile that is joined in shared memory
static const u64 NBITS = 63;   // mask of the length in an entry: word * 64 + length

// A table has SINGLES entries, then the parameter of the rule for other symbols.

// Whether elements from `start` on have a word, as those of zero-norm buckets have none.
struct HasWord {
    const u8* uncoded;  // flags of buckets
    i64 bucket, number, end;  // a bucket size of 0 means that all are coded
    __device__ __forceinline__ HasWord(const u8* flags, i64 size, i64 start)
        : uncoded(flags), bucket(size), number(size ? start / size : 0), end((number + 1) * size) {}

    __device__ __forceinline__ bool at(i64 i) {  // i must rise, and be below n
        if (!bucket) return true;
        while (i >= end) number += 1, end += bucket;
        return !uncoded[number];
    }
};

// Number of bits of a word; −1 for a symbol without a word.
__device__ __forceinline__ i64 length_of(const Code& code, const u64* singles, u32 symbol) {
    u64 entry = symbol < SINGLES ? singles[symbol] : 0;
    if (entry) return (i64)(entry & NBITS);
    return code.rule == TABLE ? -1 : spelled_nbits(code, symbol);
}

template <bool swap>
__device__ __forceinline__ void put_words(
    const Share& own, i64 n, i64 start, HasWord has_word, const u64* singles, const Code& code,
    BitWriter<swap> out
) {
#pragma unroll 1
    for (int k = 0; k < EACH; ++k) {
        if (start + k >= n || !has_word.at(start + k)) continue;
        u32 symbol = own[k];
        u64 entry = symbol < SINGLES ? singles[symbol] : 0;
        if (entry) out.put((u32)(entry >> 6), (int)(entry & NBITS));
        else if (code.rule != TABLE) spell(code, symbol, out);
    }
    out.finish();
}

// `lengths` receives the number of bits of each tile, `status` the first element that has no word.
// `uncoded` has a flag for each bucket of n elements.
extern "C" __global__ void __launch_bounds__(THREADS) measure_words(
    const u8* symbols, i32 width, i64 n, const u8* uncoded, i64 bucket, const u64* table, i32 rule,
    i32 mapping, u64 shift, i64* lengths, i64* status
) {
    __shared__ u64 singles[SINGLES];
    __shared__ i64 scratch[THREADS / WARP];
    if (threadIdx.x < SINGLES) singles[threadIdx.x] = table[threadIdx.x];
    __syncthreads();
    Code code = {rule, mapping, shift, table[SINGLES], 0};
    i64 start = (i64)blockIdx.x * TILE + threadIdx.x * EACH, nbits = 0;
    Share own(symbols, width, n, start);
    HasWord has_word(uncoded, bucket, start);
#pragma unroll 1
    for (int k = 0; k < EACH; ++k) {
        if (start + k >= n || !has_word.at(start + k)) continue;
        i64 length = length_of(code, singles, own[k]);
        if (length < 0) atomicMin(status, start + k);
        else nbits += length;
    }
    nbits = scan_block<Sum>(nbits, scratch).total;
    if (threadIdx.x == 0) lengths[blockIdx.x] = nbits;
}

// `offsets` holds the bit of each tile in `out`, and of the end. `out` has `size` words, zero except for
// bits before the first tile. All symbols have words. An end of 0 means that another string was chosen.
extern "C" __global__ void __launch_bounds__(THREADS) write_words(
    const u8* symbols, i32 width, i64 n, const u8* uncoded, i64 bucket, const u64* table, i32 rule,
    i32 mapping, u64 shift, const i64* offsets, u32* out, i64 size
) {
    __shared__ u64 singles[SINGLES];
    __shared__ i64 scratch[THREADS / WARP];
    __shared__ u32 room[ROOM];
    if (!offsets[gridDim.x]) return;  // all threads do
    if (threadIdx.x < SINGLES) singles[threadIdx.x] = table[threadIdx.x];
    Code code = {rule, mapping, shift, table[SINGLES], 0};
    i64 begin = offsets[blockIdx.x];
    i64 nbits = offsets[blockIdx.x + 1] - offsets[blockIdx.x];
    int phase = (int)(begin & 31);
    bool joined = nbits <= 32 * ROOM - 32;
    int words = joined ? (int)((phase + nbits + 31) / 32) : 0;  // at most ROOM
    for (int w = threadIdx.x; w < words; w += THREADS) room[w] = 0;
    __syncthreads();
    i64 start = (i64)blockIdx.x * TILE + threadIdx.x * EACH, have = 0;
    Share own(symbols, width, n, start);
    HasWord has_word(uncoded, bucket, start), same = has_word;
#pragma unroll 1
    for (int k = 0; k < EACH; ++k)
        if (start + k < n && has_word.at(start + k)) have += length_of(code, singles, own[k]);
    i64 before = scan_block<Sum>(have, scratch).before;
    if (!joined) {
        put_words(own, n, start, same, singles, code, BitWriter<true>(out, size, begin + before));
        return;
    }
    put_words(own, n, start, same, singles, code, BitWriter<false>(room, words, phase + before));
    __syncthreads();
    i64 at = begin >> 5;
    for (int w = threadIdx.x; w < words && at + w < size; w += THREADS) {
        u32 word = swapped(room[w]);
        bool whole = (w > 0 || phase == 0) && (w + 1 < words || ((phase + nbits) & 31) == 0);
        if (whole) out[at + w] = word;
        else atomicOr(out + at + w, word);  // other tiles have bits in this word
    }
}
