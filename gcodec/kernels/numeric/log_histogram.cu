// Twin of log_histogram.py: a histogram of the exponents and upper mantissa bits of float32 values.
#include "kernels/numeric/log_histogram.cuh"

// counts: BINS
extern "C" __global__ void __launch_bounds__(256)
    count_magnitudes(const u32* __restrict__ x, i64 n, u64* __restrict__ counts) {
    count_all(x, n, false, counts);
}
