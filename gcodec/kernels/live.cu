// Symbols of elements that have a word: gathered from those of all, and spread among them.
#include "report.cuh"

extern "C" __global__ void __launch_bounds__(256)
    silent_buckets(const u32* norms, i64 count, u8* out) {
    for (i64 b = GCODEC_FIRST; b < count; b += GCODEC_STEP) out[b] = (norms[b] & 0x7FFFFFFF) == 0;
}

// `silent` and `starts` have one for each bucket of n elements: whether it has no words, and how
// many words there are before it.
extern "C" __global__ void __launch_bounds__(256) gather_live(
    const u8* symbols, i64 n, const u8* silent, i64 bucket, const i64* starts, u8* out, i64 count
) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        i64 b = i / bucket, place = starts[b] + i - b * bucket;
        if (!silent[b] && place < count) out[place] = symbols[i];
    }
}

extern "C" __global__ void __launch_bounds__(256) spread_live(
    const u8* symbols, i64 count, const u8* silent, i64 bucket, const i64* starts, u8* out, i64 n
) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        i64 b = i / bucket, place = starts[b] + i - b * bucket;
        out[i] = !silent[b] && place < count ? symbols[place] : 0;
    }
}

// Reports the first byte of symbols of `width` bytes that is not 0, though it must be.
extern "C" __global__ void __launch_bounds__(256) refuse_silent(
    const u8* symbols, i32 width, i64 n, const u8* silent, i64 bucket, u64* wrong
) {
    for (i64 i = GCODEC_FIRST; i < n * width; i += GCODEC_STEP)
        if (symbols[i] && silent[i / width / bucket]) report(wrong, i);
}
