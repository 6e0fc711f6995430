// Uniform levels between the ends of a bucket, packed, and back; see uniform.py.
#include "kernels/numeric/floats.cuh"
#include "kernels/numeric/philox.cuh"

// The numbers of a bucket: low and factor for quantizing; end, step and inverted bits for decoding.
struct Bucket {
    i64 end;  // one past the bucket's last element
    f64 one, two;
    u32 flip;
};

// Writes the `bits` bytes of eight codes; the first code is the highest of `codes`.
__device__ __forceinline__ void store_group(u64 codes, i32 bits, i64 at, i64 nbytes, u8* out) {
    if (at + bits <= nbytes && (u64)out % 8 == 0) {  // so groups of 8 and 4 bytes are aligned
        if (bits == 8) {
            u32 high = __byte_perm((u32)(codes >> 32), 0, 0x0123), low = (u32)codes;
            *(u64*)(out + at) = (u64)__byte_perm(low, 0, 0x0123) << 32 | high;
            return;
        }
        if (bits == 4) {
            *(u32*)(out + at) = __byte_perm((u32)codes, 0, 0x0123);
            return;
        }
    }
    for (i32 b = 0; b < bits; b++)
        if (at + b < nbytes) out[at + b] = (u8)(codes >> 8 * (bits - 1 - b));
}

__device__ __forceinline__ u64 load_group(const u8* data, i32 bits, i64 at, i64 nbytes) {
    u64 codes = 0;
    for (i32 b = 0; b < bits; b++) codes = codes << 8 | (at + b < nbytes ? data[at + b] : 0);
    return codes;
}

__device__ __forceinline__ Bucket factor_of(const u32* ranges, i64 bucket, i64 last, f64 levels, i64 i) {
    i64 b = min(i / bucket, last);
    f64 low = widened(ranges[2 * b]), high = widened(ranges[2 * b + 1]);
    f64 factor = high > low ? __ddiv_rn(levels, __dsub_rn(high, low)) : 0.0;
    return Bucket{(b + 1) * bucket, low, factor, 0};
}

__device__ __forceinline__ Bucket end_of(const u32* ranges, i64 bucket, i64 last, u32 levels, i64 i) {
    i64 b = min(i / bucket, last);
    u32 bits_low = ranges[2 * b], bits_high = ranges[2 * b + 1];
    f64 low = widened(bits_low), high = widened(bits_high);
    f64 step = __ddiv_rn(__dsub_rn(high, low), (f64)(i32)levels);
    if ((bits_low & MAGNITUDE) <= (bits_high & MAGNITUDE))
        return Bucket{(b + 1) * bucket, low, step, 0};
    return Bucket{(b + 1) * bucket, high, -step, levels};
}

// Eight elements make `bits` bytes. ranges: both ends of each of ceil(n / bucket) buckets.
extern "C" __global__ void quantize_tiles(
    const u32* x, i64 n, u64 seed, i32 stochastic, const u32* ranges, i64 bucket, i32 bits, u8* out,
    i64 nbytes) {
    i64 last = (n - 1) / bucket;
    i32 levels = (1 << bits) - 1;
    for (i64 group = GCODEC_FIRST; 8 * group < n; group += GCODEC_STEP) {
        Bucket own = {-1, 0.0, 0.0, 0};
        Words random = {};
        u64 codes = 0;
        u32 values[8];
        load_eight(x, 8 * group, n, values);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            i64 i = 8 * group + k;
            codes <<= bits;
            if (i >= n) continue;
            if (i >= own.end) own = factor_of(ranges, bucket, last, (f64)levels, i);
            f64 r = __dmul_rn(__dsub_rn(widened(values[k]), own.one), own.two);
            i32 code;
            if (stochastic) {
                if (k % 4 == 0) random = philox(seed, (u64)i >> 2, ROUNDING);
                f64 whole = floor(r);
                i32 bound = __double2int_rz(__dmul_rn(__dsub_rn(r, whole), 0x1p31));
                // r may exceed the last level because its factor is rounded.
                code = min(__double2int_rz(whole) + ((i32)(random.of[k % 4] >> 1) < bound), levels);
            } else {
                code = __double2int_rz(rint(r));
            }
            codes |= (u64)(u32)code;
        }
        store_group(codes, bits, group * bits, nbytes, out);
    }
}

// Writes values, or if `add`, adds scale times them to `out`.
extern "C" __global__ void __launch_bounds__(256, 4) dequantize_tiles(
    const u8* data, i64 nbytes, const u32* ranges, i64 bucket, i32 bits, f32 scale, i32 add, u32* out,
    i64 n) {
    i64 last = (n - 1) / bucket;
    u32 levels = (1u << bits) - 1;
    for (i64 group = GCODEC_FIRST; 8 * group < n; group += GCODEC_STEP) {
        Bucket own = {-1, 0.0, 0.0, 0};
        u64 codes = load_group(data, bits, group * bits, nbytes);
        u32 values[8] = {};
#pragma unroll
        for (int k = 0; k < 8; k++) {
            i64 i = 8 * group + k;
            if (i >= n) continue;
            if (i >= own.end) own = end_of(ranges, bucket, last, levels, i);
            u32 code = ((u32)(codes >> bits * (7 - k)) & levels) ^ own.flip;
            values[k] = narrowed(__dadd_rn(own.one, __dmul_rn((f64)(i32)code, own.two)));
        }
        store_eight(out, 8 * group, n, values, scale, add);
    }
}
