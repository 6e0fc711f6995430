// Twin of package_merge.py: lengths of Huffman words for counts of bytes. One block; thread k has symbol
// k, and the coin of the k-th symbol that occurs, from the rarest on.
#include "kernels/numeric/scan.cuh"

static const int SYMBOLS = 256;
static const int LONGEST = 12;

// The number of rising numbers that are below a value or, if `equal`, equal to it.
__device__ __forceinline__ int upto(const u64* numbers, int size, u64 value, bool equal) {
    int first = 0;
    while (size > 0) {
        int half = size / 2;
        bool before = numbers[first + half] < value || (equal && numbers[first + half] == value);
        if (before) first += half + 1, size -= half + 1;
        else size = half;
    }
    return first;
}

// Counts add up to less than 2^60, so that no package passes 64 bits.
extern "C" __global__ void __launch_bounds__(SYMBOLS)
code_lengths(const u64* counts, u8* lengths) {
    __shared__ u64 all_counts[SYMBOLS], coins[SYMBOLS], packages[SYMBOLS], list[2 * SYMBOLS];
    __shared__ u16 places[LONGEST * SYMBOLS];  // of the coins in the list of each level
    __shared__ i64 scratch[SYMBOLS / WARP];
    int k = threadIdx.x, rank = 0;
    u64 own = counts[k];
    all_counts[k] = own;
    __syncthreads();
    int used = (int)scan_block<Sum>(own > 0, scratch).total;
    for (int other = 0; other < SYMBOLS; ++other) {
        u64 count = all_counts[other];
        rank += count && (count < own || (count == own && other < k));
    }
    if (own) coins[rank] = own;  // rank < used
    __syncthreads();
    int most = 2 * used - 2, have = 0, length = 0;
    bool coin = k < used;
    for (int level = 0; level < LONGEST; ++level) {
        int pairs = have / 2;
        u64 sum = k < pairs ? list[2 * k] + list[2 * k + 1] : 0;  // have <= 2 * SYMBOLS
        if (k < pairs) packages[k] = sum;
        __syncthreads();
        // Of equal counts, coins come first.
        int place = coin ? k + upto(packages, pairs, coins[k], false) : 0;
        int package_place = k < pairs ? k + upto(coins, used, sum, true) : most;
        if (coin && place < most) list[place] = coins[k];
        if (package_place < most) list[package_place] = sum;
        if (coin) places[level * SYMBOLS + k] = (u16)place;
        have = min(used + pairs, most);
        __syncthreads();
    }
    int wanted = most;
    for (int level = LONGEST - 1; level >= 0; --level) {
        bool counted = coin && places[level * SYMBOLS + k] < wanted;
        length += counted;
        wanted = 2 * (wanted - (int)scan_block<Sum>(counted, scratch).total);
    }
    if (used == 1) length = 1;  // a lone symbol has a word too
    if (coin) packages[k] = (u64)length;
    __syncthreads();
    lengths[k] = own ? (u8)packages[rank] : 0;
}
