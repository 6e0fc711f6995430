// The reader of prefix codes: up to six symbols by one lookup of the next twelve bits. Each thread reads
// a block of symbols from its offset in the seek table; without a table, one thread reads all blocks.
#include "kernels/bits/widths.cuh"
#include "kernels/prefix/codewords.cuh"

static const int WINDOW = 12;
static const int RUNS = 1 << WINDOW;

// Output of consecutive symbols of one, two or four bytes; bytes are collected in words of eight.
struct Sink {
    u8* out;
    int width;
    i64 place;     // of the first held symbol
    u64 held;      // bytes, the first lowest; unused for wider symbols
    int count;     // of held bytes, below 8
    bool aligned;  // whether words of eight bytes may be written

    __device__ __forceinline__ Sink(u8* array, int nbytes, i64 first)
        : out(array), width(nbytes), place(first), held(0), count(0),
          aligned(((u64)(array + first) & 7) == 0) {}

    __device__ __forceinline__ void put(u64 symbol) {
        if (width == 1) put_bytes(symbol & 255, 1);
        else put_wide(symbol);
    }
    __device__ __forceinline__ void put_wide(u64 symbol) {
        put_symbol(out, width, place++, (u32)symbol);
    }
    // Up to 8 symbols, with zeros after them.
    __device__ __forceinline__ void put_bytes(u64 symbols, int size) {
        if (width > 1) {
            for (int k = 0; k < size; ++k) put_wide(symbols >> 8 * k & 255);
            return;
        }
        held |= symbols << 8 * count;
        count += size;
        if (count < 8) return;
        count -= 8;
        flush(8);
        place += 8;
        held = count ? symbols >> 8 * (size - count) : 0;
    }
    __device__ __forceinline__ void flush(int size) {
        if (size == 8 && aligned) {
            *(u64*)(out + place) = held;
            return;
        }
#pragma unroll 1
        for (int k = 0; k < size; ++k) out[place + k] = (u8)(held >> 8 * k);
    }
    __device__ __forceinline__ void finish() { flush(count); }
};

struct String {
    const u8* data;
    i64 nbytes;
    i64 end;  // bit where the string ends, at most 8 * nbytes
    const u64* runs;
    const u32* singles;
    Code code;
};

// Reads `count` symbols; returns the next bit, or an error, whose bit `wrong` receives.
__device__ __forceinline__ i64 read_symbols(
    const String& from, BitReader& bits, i64 count, Sink& out, i64* wrong
) {
    while (count > 0) {
        bits.fill();
        i64 at = bits.at();
        if (at + WINDOW <= from.end) {
            u64 entry = from.runs[bits.window >> (64 - WINDOW)];
            int size = (int)(entry >> 56);
            if (size && size <= count) {
                out.put_bytes(entry & 0xFFFFFFFFFFFFull, size);
                bits.skip((int)(entry >> 48 & 255));
                count -= size;
                continue;
            }
        }
        u32 single = from.singles[bits.window >> (64 - WINDOW)];
        int nbits = (int)(single & 63);
        if (single && at + nbits <= from.end) {
            out.put(single >> 6);
            bits.skip(nbits);
        } else {
            u64 symbol = 0;
            i64 after = read_symbol(from.code, from.data, from.nbytes, at, from.end, &symbol);
            if (after < 0) {
                *wrong = at;
                return after;
            }
            out.put(symbol);
            bits.seek(after);
        }
        count -= 1;
    }
    return bits.at();
}

// Reads elements `i` to `stop`; those of zero-norm buckets are 0 and have no word.
__device__ __forceinline__ i64 read_block(
    const String& from, i64 at, i64 i, i64 stop, const u8* uncoded, i64 bucket, Sink sink,
    i64* wrong
) {
    BitReader bits(from.data, from.nbytes);
    bits.seek(at);
    while (i < stop) {
        i64 upto = stop;
        if (bucket) {
            i64 number = i / bucket;
            upto = (number + 1) * bucket < stop ? (number + 1) * bucket : stop;
            if (uncoded[number]) {
                for (; i < upto; ++i) sink.put(0);
                continue;
            }
        }
        at = read_symbols(from, bits, upto - i, sink, wrong);
        if (at < 0) return at;
        i = upto;
    }
    sink.finish();
    return at;
}

// `starts` holds the bit, counted from `first`, of each block of `block_size` elements and of the end.
// If `chained`, the kernel verifies it; otherwise only its first element is set, and one thread writes
// the others. A bucket size of 0 means that all buckets are coded. `out` has room for n symbols of
// `width` bytes.
extern "C" __global__ void __launch_bounds__(128, 6) read_words(
    const u8* data, i64 nbytes, i64 end, i64* starts, i64 first, i64 n, i64 block_size, i32 chained,
    const u8* uncoded, i64 bucket, const u64* runs, const u32* singles, i32 rule, i32 mapping,
    u64 shift, u64 parameter, u64 top, i32 width, u8* out, i64* status
) {
    __shared__ u64 table[RUNS];
    for (int k = threadIdx.x; k < RUNS; k += blockDim.x) table[k] = runs[k];
    __syncthreads();
    String from = {data, nbytes, end, table, singles, {rule, mapping, shift, parameter, top}};
    i64 blocks = (n + block_size - 1) / block_size, wrong = 0;
    i64 b = chained ? GCODEC_FIRST : 0, last = chained ? b + 1 : blocks;
    if (b >= blocks || (!chained && GCODEC_FIRST != 0)) return;
    i64 at = first + starts[b];
    for (; b < last; ++b) {  // below blocks
        i64 stop = (b + 1) * block_size < n ? (b + 1) * block_size : n, begin = at;
        Sink sink(out, width, b * block_size);
        at = at < 0 || at > end
            ? BROKEN
            : read_block(from, at, b * block_size, stop, uncoded, bucket, sink, &wrong);
        if (at >= 0 && chained && at != first + starts[b + 1]) at = BROKEN;
        if (at == BROKEN) wrong = begin;
        if (at < 0) {
            atomicMin(status, status_of(wrong, at));
            return;
        }
        if (!chained) starts[b + 1] = at - first;
    }
}
