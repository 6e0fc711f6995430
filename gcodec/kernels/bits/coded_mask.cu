// Symbols of elements that have a word: gathered from those of all, and spread among them.
#include "runtime/report.cuh"

extern "C" __global__ void __launch_bounds__(256)
    silent_buckets(const u32* norms, i64 count, u8* out) {
    for (i64 b = GCODEC_FIRST; b < count; b += GCODEC_STEP) out[b] = (norms[b] & 0x7FFFFFFF) == 0;
}

// Which of `count` buckets are silent, or all of them if `all` is not 0.
extern "C" __global__ void __launch_bounds__(256)
    hush(const u8* silent, i64 count, const u8* all, u8* out) {
    for (i64 b = GCODEC_FIRST; b < count; b += GCODEC_STEP) out[b] = silent[b] || *all;
}

// How many elements of each bucket of n elements have a word.
extern "C" __global__ void __launch_bounds__(256)
    words_of(const u8* silent, i64 count, i64 n, i64 bucket, i64* words) {
    for (i64 b = GCODEC_FIRST; b < count; b += GCODEC_STEP)
        words[b] = silent[b] ? 0 : b * bucket + bucket < n ? bucket : n - b * bucket;
}

// Takes those of n elements that have no word from the counts of symbols: they are 0.
extern "C" __global__ void leave_silent(const i64* words, i64 n, i64* counts) {
    counts[0] -= n - *words;  // one thread
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
