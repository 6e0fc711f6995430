// Twin of sent_codes.py: the transmitted two-bit codes of MXNet, and their signs.
#include "kernels/bits/bit_list.cuh"
#include "kernels/bits/bits.cuh"

// The upper bits of the 16 codes of a word, the first code highest.
__device__ __forceinline__ u32 sent_of(u32 word) { return swapped(word) & 0xAAAAAAAAu; }

extern "C" __global__ void __launch_bounds__(256)
    count_sent(const u32* __restrict__ words, i64 n, i64* __restrict__ counts) {
    count_bits(n, counts, [&](i64 w) { return sent_of(words[w]); });
}

extern "C" __global__ void __launch_bounds__(256)
    list_sent(const u32* __restrict__ words, i64 n, const i64* __restrict__ before,
              i64* __restrict__ positions, u8* __restrict__ minus, i64 room,
              i64* __restrict__ counts) {
    // positions, minus: `room` elements; minus becomes 1 for the code 10. counts: the number of
    // transmitted codes; the same number, or 0 if there is no room; then 0, or n if there is no room.
    if (GCODEC_FIRST == 0) {
        i64 all = before[(n + PART - 1) / PART];
        counts[0] = all;
        counts[1] = all <= room ? all : 0;
        counts[2] = all <= room ? 0 : n;
    }
    list_bits(
        n, before, [&](i64 w) { return sent_of(words[w]); },
        [&](i64 at, i64 w, int bit) {
            if (at >= room) return;
            positions[at] = 16 * w + bit / 2;
            minus[at] = (u8)(~(swapped(words[w]) >> (30 - bit)) & 1);  // the code's lower bit
        }
    );
}
