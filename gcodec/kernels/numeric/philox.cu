// Twin of the kernel of philox.py.
#include "kernels/numeric/philox.cuh"

// Words of n elements from `start` on, a multiple of 4.
extern "C" __global__ void words(u64 seed, u64 start, u64 stream, i64 n, u32* out) {
    for (i64 group = GCODEC_FIRST; 4 * group < n; group += GCODEC_STEP) {
        Words found = philox(seed, (start >> 2) + (u64)group, stream);
        for (int k = 0; k < 4; k++)
            if (4 * group + k < n) out[4 * group + k] = found.of[k];
    }
}
