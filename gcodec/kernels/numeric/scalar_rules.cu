// Twin of scalar_rules.py: one thread computes a number; each step is rounded once.
#include "kernels/numeric/floats.cuh"

extern "C" __global__ void negative(const u32* number, u32* out) { *out = *number ^ SIGN_BIT; }

extern "C" __global__ void mean_of(const f64* total, f64 n, i32 root, u32* out) {
    f64 mean = *total / n;
    *out = narrowed(root ? __dsqrt_rn(mean) : mean);
}

extern "C" __global__ void bounded_rms(
    const f64* squares, f64 n, f64 factor, f64 least, f64 most, u32* out) {
    f64 size = __dmul_rn(factor, __dsqrt_rn(*squares / n));
    if (size < least) size = least;
    *out = narrowed(size > most ? most : size);
}

// n is not 0 unless the largest magnitude is 0.
extern "C" __global__ void clipped_size(
    const f64* total, const f64* squares, const u32* largest, f64 n, f64 clip, u32* out) {
    u32 scale = *largest;
    if (scale) {
        f64 mean = *total / n, square = *squares / n;
        f64 variance = __dadd_rn(square, -__dmul_rn(mean, mean));
        if (!(variance > 0.0)) variance = 0.0;
        f64 bound = __dmul_rn(clip, __dsqrt_rn(variance)), top = widened(scale);
        u32 clipped = narrowed(bound < top ? bound : top);
        if (clipped != 0 && !(variance < __dmul_rn(0x1p-40, square))) scale = clipped;
    }
    *out = scale;
}
