// Twin of sent_codes.py: which of the two-bit codes of MXNet are sent, and their signs.
#include "bits.cuh"
#include "scan.cuh"

static const i64 PART = 512;  // words of 16 codes of a warp
static const u32 SENT = 0xAAAAAAAAu;  // upper bits of the codes of a word

extern "C" __global__ void __launch_bounds__(256)
    count_sent(const u32* __restrict__ words, i64 n, i64* __restrict__ counts) {
    // Whole warps; counts: of each part
    int lane = threadIdx.x % WARP;
    for (i64 part = GCODEC_FIRST / WARP; part * PART < n; part += GCODEC_STEP / WARP) {
        i64 stop = min(part * PART + PART, n);
        int own = 0;
        for (i64 w = part * PART + lane; w < stop; w += WARP) own += __popc(words[w] & SENT);
        for (int step = 16; step; step /= 2) own += __shfl_xor_sync(EVERY_LANE, own, step);
        if (lane == 0) counts[part] = own;
    }
}

extern "C" __global__ void __launch_bounds__(256)
    list_sent(const u32* __restrict__ words, i64 n, const i64* __restrict__ before,
              i64* __restrict__ positions, u8* __restrict__ minus, i64 room) {
    // Whole warps; before: how many are sent before each part. positions and minus have `room`
    // elements, of which the second become 1 for the code 10.
    int lane = threadIdx.x % WARP;
    for (i64 part = GCODEC_FIRST / WARP; part * PART < n; part += GCODEC_STEP / WARP) {
        i64 stop = min(part * PART + PART, n), place = before[part];
        for (i64 row = part * PART; row < stop; row += WARP) {  // the same for all lanes
            u32 word = row + lane < stop ? swapped(words[row + lane]) : 0, sent = word & SENT;
            i64 upto = scan_warp<Sum>(__popc(sent));
            i64 at = place + upto - __popc(sent);
            for (; sent; ++at) {
                int lead = __clz((int)sent);  // even, as these are upper bits
                if (at < room) {
                    positions[at] = 16 * (row + lane) + lead / 2;
                    minus[at] = (u8)(~(word >> (30 - lead)) & 1);
                }
                sent ^= 0x80000000u >> lead;
            }
            place += __shfl_sync(EVERY_LANE, upto, WARP - 1);
        }
    }
}
