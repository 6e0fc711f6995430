// Twin of leaf_digests.py: BLAKE2b of the leaves of a tree.
//
// Four lanes digest a leaf: each has a column of the state, and receives a diagonal from the other
// lanes. They share the 16 words of a block of the message.
#include "kernels/numeric/scan.cuh"

static const i64 BLOCK = 128;  // bytes
static const int LANES = 4;    // threads of a leaf
static const int LEAVES = WARP / LANES;
static const int APART = 17;  // words from the block of a leaf to the next, in different banks

// The parameters but the size of the leaves: digests of 16 bytes without key, unlimited fanout, depth 2;
// and inner digests of 16 bytes.
static const u64 PARAMETERS = 16 | 2 << 24, INNER = 16 << 8;

// The initial state, and in nibbles the words of the message that each round adds.
__constant__ u64 INITIAL[8] = {
    0x6A09E667F3BCC908ull, 0xBB67AE8584CAA73Bull, 0x3C6EF372FE94F82Bull, 0xA54FF53A5F1D36F1ull,
    0x510E527FADE682D1ull, 0x9B05688C2B3E6C1Full, 0x1F83D9ABFB41BD6Bull, 0x5BE0CD19137E2179ull,
};
__constant__ u64 WORDS[10] = {
    0xFEDCBA9876543210ull, 0x357B20C16DF984AEull, 0x491763EADF250C8Bull, 0x8F04A562EBCD1397ull,
    0xD386CB1EFA427509ull, 0x91EF57D438B0A6C2ull, 0xB8293670A4DEF15Cull, 0xA2684F05931CE7BDull,
    0x5A417D2C803B9EF6ull, 0x0DC3E9BF5167482Aull,
};

__device__ __forceinline__ u64 rotated(u64 x, int right) { return x >> right | x << (64 - right); }

// The function G of BLAKE2b: mixes two words of a message into a column or diagonal.
__device__ __forceinline__ void mix(u64& a, u64& b, u64& c, u64& d, u64 x, u64 y) {
    a += b + x;
    d = rotated(d ^ a, 32);
    c += d;
    b = rotated(b ^ c, 24);
    a += b + y;
    d = rotated(d ^ a, 16);
    c += d;
    b = rotated(b ^ c, 63);
}

// The value of the lane that is `steps` lanes further among the lanes of a leaf, in a circle.
__device__ __forceinline__ u64 from_lane(u64 value, int steps) {
    return __shfl_sync(EVERY_LANE, value, (threadIdx.x + steps) % LANES, LANES);
}

// The words of a whole block that a lane reads: each fourth one. `at` is a multiple of 8 bytes.
__device__ __forceinline__ void load_words(const u8* data, i64 at, u64 (&words)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
        words[k] = ((const u64*)(data + at))[threadIdx.x % LANES + LANES * k];
}

extern "C" __global__ void __launch_bounds__(32)
    digest_leaves(const u8* __restrict__ data, i64 nbytes, i64 length, i64 leaves,
                  u64* __restrict__ digests) {
    // One warp; length: bytes of a leaf, a multiple of 128; digests: 2 · leaves.
    __shared__ u64 message[LEAVES * APART];
    int lane = threadIdx.x % LANES;
    i64 leaf = (i64)blockIdx.x * LEAVES + threadIdx.x / LANES;
    i64 start = min(leaf * length, nbytes), stop = min(start + length, nbytes);
    // All leaves but the last have as many blocks as the first of the warp, and none has more.
    i64 first = min((i64)blockIdx.x * LEAVES * length, nbytes);
    i64 most = max(min(length, nbytes - first), (i64)1);
    u64* words = message + threadIdx.x / LANES * APART;
    u64 low = INITIAL[lane], high = INITIAL[lane + 4];  // the state between blocks
    if (lane == 0) low ^= PARAMETERS | (u64)length << 32;
    if (lane == 1) low ^= (u64)leaf;
    if (lane == 2) low ^= INNER;
    u64 next[4] = {};
    if (start + BLOCK <= stop) load_words(data, start, next);
    for (i64 at = 0; at < most; at += BLOCK) {  // the same for the whole warp
        i64 block = start + at, end = min(block + BLOCK, stop);
        if (block + BLOCK <= stop) {
#pragma unroll
            for (int k = 0; k < 4; ++k) words[lane + LANES * k] = next[k];
        } else {
#pragma unroll 1
            for (int k = lane; k < BLOCK; k += LANES)
                ((u8*)words)[k] = block + k < stop ? data[block + k] : 0;
        }
        __syncwarp();
        if (block + 2 * BLOCK <= stop) load_words(data, block + BLOCK, next);  // meanwhile
        bool is_last = end == stop;
        u64 a = low, b = high, c = INITIAL[lane], d = INITIAL[lane + 4];
        if (lane == 0) d ^= (u64)(end - start);
        if (lane == 2 && is_last) d = ~d;
        if (lane == 3 && is_last && leaf == leaves - 1) d = ~d;
#pragma unroll 1
        for (int round = 0; round < 12; ++round) {
            u64 order = WORDS[round % 10];
            u32 column = (u32)order >> 8 * lane, diagonal = (u32)(order >> 32) >> 8 * lane;
            mix(a, b, c, d, words[column & 15], words[column >> 4 & 15]);
            b = from_lane(b, 1), c = from_lane(c, 2), d = from_lane(d, 3);
            mix(a, b, c, d, words[diagonal & 15], words[diagonal >> 4 & 15]);
            b = from_lane(b, 3), c = from_lane(c, 2), d = from_lane(d, 1);
        }
        if (block < stop || at == 0) {  // not a block after the end of a short leaf
            low ^= a ^ c;
            high ^= b ^ d;
        }
        __syncwarp();  // the next block takes the place of this one
    }
    if (lane < 2 && leaf < leaves) digests[2 * leaf + lane] = low;
}
