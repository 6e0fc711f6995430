// Philox4x32-10, the generator of random words; see philox.py.
#pragma once
#include "runtime/types.cuh"

struct Words {
    u32 of[4];
};

// The words of elements 4 * counter to 4 * counter + 3.
__device__ __forceinline__ Words philox(u64 seed, u64 counter, u64 stream) {
    u32 c0 = (u32)counter, c1 = (u32)(counter >> 32), c2 = (u32)stream, c3 = (u32)(stream >> 32);
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return Words{{c0, c1, c2, c3}};
}

static const u64 ROUNDING = 0;  // stream of stochastic rounding
