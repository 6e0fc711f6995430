// Levels and their signs in fields of equal width; see level_fields.py. `uncoded` and `starts` have an
// entry for each bucket of n elements: whether its elements have no fields, and the number of fields
// that precede it. All elements have fields if `bucket` is 0.
#include "kernels/bits/bits.cuh"
#include "kernels/bits/widths.cuh"
#include "runtime/report.cuh"

static const int EACH = 16;  // elements for each thread

// The fields of the elements from i on.
struct Fields {
    const u8* uncoded;
    const i64* starts;
    i64 bucket, b, left;  // bucket of the next element, and its elements from this one on

    __device__ __forceinline__ Fields(const u8* flags, i64 size, const i64* counts, i64 i)
        : uncoded(flags), starts(counts), bucket(size), b(size ? i / size : 0),
          left(size ? (b + 1) * size - i : 0) {}

    // Number of fields that precede the element i, which is the next one.
    __device__ __forceinline__ i64 before(i64 i) const {
        return bucket ? starts[b] + (uncoded[b] ? 0 : i - b * bucket) : i;
    }

    // Whether the next element has a field; moves to the element after it.
    __device__ __forceinline__ bool next() {
        if (!bucket) return true;
        bool coded = !uncoded[b];
        left -= 1;
        if (!left) {
            b += 1;
            left = bucket;
        }
        return coded;
    }
};

// Number of bits up to the end of the fields, from one thread.
extern "C" __global__ void count_bits(const i64* fields, i32 width, i64 first, i64* end) {
    *end = first + *fields * width;
}

// Writes the fields from bit `first` of zeros on, unless `end` is 0.
extern "C" __global__ void __launch_bounds__(256) write_levels(
    const u8* symbols, i32 nbytes, i64 n, const u8* uncoded, i64 bucket, const i64* starts, i32 width,
    i64 first, const i64* end, u32* out, i64 size
) {
    i64 start = GCODEC_FIRST * EACH;
    if (start >= n || !*end) return;
    Fields fields(uncoded, bucket, starts, start);
    BitWriter<true> bits(out, size, first + fields.before(start) * width);
    for (i64 i = start; i < start + EACH && i < n; ++i) {
        u32 symbol = symbol_at(symbols, nbytes, i);
        if (fields.next()) bits.put(symbol - 2 * (symbol & 1), width);
    }
    bits.finish();
}

// Reads the fields from bit `first` on; reports the bit of the first field above 2 * s.
extern "C" __global__ void __launch_bounds__(256) read_levels(
    const u8* data, i64 count, i64 first, i64 n, const u8* uncoded, i64 bucket, const i64* starts,
    i32 width, i64 s, i32 nbytes, u8* symbols, u64* wrong
) {
    i64 start = GCODEC_FIRST * EACH;
    if (start >= n) return;
    Fields fields(uncoded, bucket, starts, start);
    BitReader bits(data, count);
    bits.seek(first + fields.before(start) * width);
    for (i64 i = start; i < start + EACH && i < n; ++i) {
        u32 symbol = 0;
        if (fields.next()) {
            bits.fill();
            u32 field = (u32)(bits.window >> (64 - width));
            if (field > 2 * s) report(wrong, bits.at());
            bits.skip(width);
            symbol = field + 2 * (field & 1);
        }
        put_symbol(symbols, nbytes, i, symbol);
    }
}
