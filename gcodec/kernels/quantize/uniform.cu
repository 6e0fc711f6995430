// Twins of the kernels of uniform.py: levels at equal distances, packed and back.
#include "kernels/numeric/floats.cuh"
#include "kernels/numeric/philox.cuh"

// What levels of a bucket are counted in, for a run of elements.
struct Bucket {
    i64 end;  // of the elements for which this holds
    f64 one, two;
    u32 flip;
};

// Writes the `bits` bytes of eight codes, which are on top of each other with the first highest.
__device__ __forceinline__ void store_group(u64 codes, i32 bits, i64 at, i64 nbytes, u8* out) {
    if (at + bits <= nbytes && (u64)out % 8 == 0) {  // groups of 8, 4 and 2 bytes are aligned then
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

__device__ __forceinline__ Bucket factor_of(const u32* found, i64 bucket, i64 last, f64 levels, i64 i) {
    i64 b = min(i / bucket, last);
    f64 low = widened(found[2 * b]), high = widened(found[2 * b + 1]);
    f64 factor = high > low ? __ddiv_rn(levels, __dsub_rn(high, low)) : 0.0;
    return Bucket{(b + 1) * bucket, low, factor, 0};
}

__device__ __forceinline__ Bucket end_of(const u32* found, i64 bucket, i64 last, u32 levels, i64 i) {
    i64 b = min(i / bucket, last);
    u32 bits_low = found[2 * b], bits_high = found[2 * b + 1];
    f64 low = widened(bits_low), high = widened(bits_high);
    f64 step = __ddiv_rn(__dsub_rn(high, low), (f64)(i32)levels);
    if ((bits_low & MAGNITUDE) <= (bits_high & MAGNITUDE))
        return Bucket{(b + 1) * bucket, low, step, 0};
    return Bucket{(b + 1) * bucket, high, -step, levels};
}

// Eight elements make `bits` bytes. found: two numbers for each of ceil(n / bucket) buckets.
extern "C" __global__ void quantize_tiles(
    const u32* x, i64 n, u64 seed, i32 stochastic, const u32* found, i64 bucket, i32 bits, u8* out,
    i64 nbytes) {
    i64 last = (n - 1) / bucket;
    i32 levels = (1 << bits) - 1;
    for (i64 group = GCODEC_FIRST; 8 * group < n; group += GCODEC_STEP) {
        Bucket here = {-1, 0.0, 0.0, 0};
        Words random = {};
        u64 codes = 0;
        uint4 low = load_four(x, 8 * group, n, 0), high = load_four(x, 8 * group + 4, n, 0);
        u32 held[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int k = 0; k < 8; k++) {
            i64 i = 8 * group + k;
            codes <<= bits;
            if (i >= n) continue;
            if (i >= here.end) here = factor_of(found, bucket, last, (f64)levels, i);
            f64 r = __dmul_rn(__dsub_rn(widened(held[k]), here.one), here.two);
            i32 code;
            if (stochastic) {
                if (k % 4 == 0) random = philox(seed, (u64)i >> 2, ROUNDING);
                f64 whole = floor(r);
                i32 bound = __double2int_rz(__dmul_rn(__dsub_rn(r, whole), 0x1p31));
                // r may pass the last level by the rounding of its factor.
                code = min(__double2int_rz(whole) + ((i32)(random.of[k % 4] >> 1) < bound), levels);
            } else {
                code = __double2int_rz(rint(r));
            }
            codes |= (u64)(u32)code;
        }
        store_group(codes, bits, group * bits, nbytes, out);
    }
}

// out, or add: out plus scale times that.
extern "C" __global__ void __launch_bounds__(256, 4) dequantize_tiles(
    const u8* data, i64 nbytes, const u32* found, i64 bucket, i32 bits, f32 scale, i32 add, u32* out,
    i64 n) {
    i64 last = (n - 1) / bucket;
    u32 levels = (1u << bits) - 1;
    for (i64 group = GCODEC_FIRST; 8 * group < n; group += GCODEC_STEP) {
        Bucket here = {-1, 0.0, 0.0, 0};
        u64 codes = load_group(data, bits, group * bits, nbytes);
        u32 values[8] = {};
#pragma unroll
        for (int k = 0; k < 8; k++) {
            i64 i = 8 * group + k;
            if (i >= n) continue;
            if (i >= here.end) here = end_of(found, bucket, last, levels, i);
            u32 code = ((u32)(codes >> bits * (7 - k)) & levels) ^ here.flip;
            values[k] = narrowed(__dadd_rn(here.one, __dmul_rn((f64)(i32)code, here.two)));
        }
#pragma unroll
        for (int k = 0; k < 8; k += 4) {
            uint4 four = make_uint4(values[k], values[k + 1], values[k + 2], values[k + 3]);
            if (add) {
                uint4 held = load_four(out, 8 * group + k, n, 0);
                u32 factor = bits_of(scale);
                four = make_uint4(add_bits(held.x, multiply_bits(factor, four.x)),
                                  add_bits(held.y, multiply_bits(factor, four.y)),
                                  add_bits(held.z, multiply_bits(factor, four.z)),
                                  add_bits(held.w, multiply_bits(factor, four.w)));
            }
            store_four(out, 8 * group + k, n, four);
        }
    }
}
