// From tensor order to the coding order of interleaved lanes, and back; see lane_order.py.
#include "kernels/quantize/trellis.cuh"

extern "C" __global__ void __launch_bounds__(256)
    to_turns(const u8* __restrict__ flat, i64 n, i32 lanes, u8* __restrict__ out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) out[i] = flat[place_of_turn(i, n, lanes)];
}

extern "C" __global__ void __launch_bounds__(256)
    from_turns(const u8* __restrict__ turns, i64 n, i32 lanes, u8* __restrict__ out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) out[place_of_turn(i, n, lanes)] = turns[i];
}
