// Twins of the kernels of pack.py.
#include "report.cuh"

// Reports the first byte of data[at:n] that is not zero; of the first byte only the spare bits count.
extern "C" __global__ void check_zero(const u8* data, i64 at, i64 n, u32 spare, u64* wrong) {
    for (i64 i = at + GCODEC_FIRST; i < n; i += GCODEC_STEP)
        if (data[i] & (i == at ? spare : 0xFF)) report(wrong, i);
}
