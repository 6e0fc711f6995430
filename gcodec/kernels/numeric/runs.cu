// Twin of runs.py: runs of neighbours, taken out of an array.
#include "runtime/types.cuh"

extern "C" __global__ void __launch_bounds__(256)
    take_runs(const u32* __restrict__ values, i64 n, const i64* __restrict__ chosen, i64 count,
              i64 length, u32* __restrict__ out) {
    // out: count·length elements
    for (i64 k = GCODEC_FIRST; k < count * length; k += GCODEC_STEP) {
        i64 at = chosen[k / length] * length + k % length;
        if ((u64)at < (u64)n) out[k] = values[at];
    }
}
