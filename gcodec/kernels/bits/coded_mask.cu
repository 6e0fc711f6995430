// Symbols of coded elements: gathered from the symbols of all elements, and spread among them. The
// elements of a zero-norm bucket are not coded.
#include "runtime/report.cuh"

extern "C" __global__ void __launch_bounds__(256)
    zero_norm_buckets(const u32* norms, i64 count, u8* out) {
    for (i64 b = GCODEC_FIRST; b < count; b += GCODEC_STEP) out[b] = (norms[b] & 0x7FFFFFFF) == 0;
}

// Marks the uncoded buckets, or all buckets if `all` is not 0.
extern "C" __global__ void __launch_bounds__(256)
    exclude_buckets(const u8* uncoded, i64 count, const u8* all, u8* out) {
    for (i64 b = GCODEC_FIRST; b < count; b += GCODEC_STEP) out[b] = uncoded[b] || *all;
}

// Counts the coded elements in each bucket of n elements.
extern "C" __global__ void __launch_bounds__(256)
    words_of(const u8* uncoded, i64 count, i64 n, i64 bucket, i64* words) {
    for (i64 b = GCODEC_FIRST; b < count; b += GCODEC_STEP)
        words[b] = uncoded[b] ? 0 : b * bucket + bucket < n ? bucket : n - b * bucket;
}

// Subtracts the elements that are not coded, whose symbols are 0, from the counts of symbols.
extern "C" __global__ void subtract_uncoded(const i64* words, i64 n, i64* counts) {
    counts[0] -= n - *words;  // one thread
}

// `uncoded` and `starts` have an entry for each bucket of n elements: whether its elements are not
// coded, and the number of coded elements preceding it.
extern "C" __global__ void __launch_bounds__(256) gather_coded(
    const u8* symbols, i64 n, const u8* uncoded, i64 bucket, const i64* starts, u8* out, i64 count
) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        i64 b = i / bucket, place = starts[b] + i - b * bucket;
        if (!uncoded[b] && place < count) out[place] = symbols[i];
    }
}

extern "C" __global__ void __launch_bounds__(256) spread_coded(
    const u8* symbols, i64 count, const u8* uncoded, i64 bucket, const i64* starts, u8* out, i64 n
) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) {
        i64 b = i / bucket, place = starts[b] + i - b * bucket;
        out[i] = !uncoded[b] && place < count ? symbols[place] : 0;
    }
}

// Reports the first nonzero byte in a zero-norm bucket; symbols have `width` bytes.
extern "C" __global__ void __launch_bounds__(256) refuse_nonzero(
    const u8* symbols, i32 width, i64 n, const u8* uncoded, i64 bucket, u64* wrong
) {
    for (i64 i = GCODEC_FIRST; i < n * width; i += GCODEC_STEP)
        if (symbols[i] && uncoded[i / width / bucket]) report(wrong, i);
}
