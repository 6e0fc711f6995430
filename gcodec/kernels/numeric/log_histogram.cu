// Twin of log_histogram.py: how often each exponent of a float32 occurs, with 6 bits below it.
#include "kernels/numeric/log_histogram.cuh"

// counts: BINS
extern "C" __global__ void __launch_bounds__(256)
    count_magnitudes(const u32* __restrict__ x, i64 n, u64* __restrict__ counts) {
    count_all(x, n, false, counts);
}
