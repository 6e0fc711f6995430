// Twin of products.py: products of a matrix with few rows of factors; and of low_rank.py, which makes
// factors of these.
//
// Integers are multiplied. Those of a block are added in any order, as integers of 64 bits, which
// are exact in float64; sums of blocks one after the other, as float64.
#include "kernels/numeric/philox.cuh"
#include "kernels/numeric/reduce.cuh"
#include "kernels/numeric/scan.cuh"

static const int RANKS = 4;  // rows of factors that are multiplied at a time
static const int VALUE_NBITS = 24, FACTOR_NBITS = 16;
static const f64 DEPENDENT = 0x1p-40;  // of a square: what is left of a row that is one of those before

__device__ __forceinline__ f64 power_of_two(i64 exponent) {
    return __longlong_as_double((exponent + 1023) << 52);
}

// The e of a float32 from 2^(e - 1) to below 2^e, given its bits; 0 of 0.
__device__ __forceinline__ int exponent_of(u32 top) {
    return top >> 23 ? (int)(top >> 23) - 126 : top ? 32 - __clz((int)top) - 149 : 0;
}

// How many of what integers count are in 1, given the bits of the largest magnitude; see products.py.
__device__ __forceinline__ f64 inverse_of(u32 top) {
    return power_of_two(VALUE_NBITS - exponent_of(top));
}

// What is not finite, and will be refused, is 0.
__device__ __forceinline__ i32 integer_of(u32 bits, f64 inverse) {
    return (bits & MAGNITUDE) < INFINITY_BITS ? (i32)rint(__dmul_rn(widened(bits), inverse)) : 0;
}

// Rows `first` to `ranks` - 1 of factors (ranks, k), up to RANKS of them; a warp for each of m rows.
extern "C" __global__ void __launch_bounds__(256, 4)
    multiply_rows(const u32* __restrict__ matrix, i64 m, i64 k, const u32* top, i64 width,
                  const i32* __restrict__ factors, i64 ranks, i64 first, f64* __restrict__ sums) {
    // sums: (ranks, m)
    int lane = threadIdx.x % WARP;
    f64 inverse = inverse_of(*top);
    for (i64 row = GCODEC_FIRST / WARP; row < m; row += GCODEC_STEP / WARP) {
        f64 total[RANKS] = {};
        for (i64 start = 0; start < k; start += width) {  // the same for all lanes
            i64 stop = min(start + width, k), own[RANKS] = {};
#pragma unroll 1
            for (i64 t = start + lane; t < stop; t += WARP) {
                i64 value = integer_of(matrix[row * k + t], inverse);
                for (int j = 0; j < RANKS; ++j)
                    if (first + j < ranks) own[j] += value * factors[(first + j) * k + t];
            }
#pragma unroll
            for (int j = 0; j < RANKS; ++j) {
                for (int step = 16; step; step /= 2)
                    own[j] += __shfl_xor_sync(EVERY_LANE, own[j], step);
                total[j] = __dadd_rn(total[j], (f64)own[j]);
            }
        }
#pragma unroll
        for (int j = 0; j < RANKS; ++j)
            if (lane == j && first + j < ranks) sums[(first + j) * m + row] = total[j];
    }
}

// The same of columns, and factors (ranks, m), for blocks of `height` rows apart: blockIdx.y is the
// block, blockIdx.x tells which columns. A thread has one, or where there are few the rows of a
// block are shared out too.
extern "C" __global__ void __launch_bounds__(256)
    multiply_columns(const u32* __restrict__ matrix, i64 m, i64 k, const u32* top, i64 height,
                     const i32* __restrict__ factors, i64 ranks, i64 first,
                     u64* __restrict__ sums) {
    // 256 threads; sums: (RANKS, blocks, k) zeros
    i64 across = min(k, (i64)blockDim.x), down = blockDim.x / across;
    i64 column = blockIdx.x * across + threadIdx.x % across;
    if (threadIdx.x >= across * down || column >= k) return;
    i64 start = blockIdx.y * height, stop = min(start + height, m), own[RANKS] = {};
    f64 inverse = inverse_of(*top);
    for (i64 row = start + threadIdx.x / across; row < stop; row += down) {
        i64 value = integer_of(matrix[row * k + column], inverse);
        for (int j = 0; j < RANKS; ++j)
            if (first + j < ranks) own[j] += value * factors[(first + j) * m + row];
    }
    for (int j = 0; j < RANKS; ++j)
        if (own[j]) atomicAdd(&sums[(j * (i64)gridDim.y + blockIdx.y) * k + column], (u64)own[j]);
}

// Adds up what multiply_columns found.
extern "C" __global__ void __launch_bounds__(256)
    add_blocks(const u64* __restrict__ sums, i64 blocks, i64 k, i64 ranks, i64 first,
               f64* __restrict__ out) {
    // out: (ranks, k)
    for (i64 i = GCODEC_FIRST; i < RANKS * k; i += GCODEC_STEP) {
        i64 j = i / k, column = i - j * k;
        if (first + j >= ranks) return;
        f64 total = 0;
        for (i64 b = 0; b < blocks; ++b)
            total = __dadd_rn(total, (f64)(i64)sums[(j * blocks + b) * k + column]);
        out[(first + j) * k + column] = total;
    }
}

// Rows of `k` random integers from −510 to 510, or where there are rows from before, and one is not
// 0, that one. A block for each row.
extern "C" __global__ void __launch_bounds__(256)
    start_rows(u64 seed, u64 stream, i64 k, const u32* __restrict__ before, bool any,
               f64* __restrict__ rows) {
    i64 first = (i64)blockIdx.x * k;
    int known = 0;
    for (i64 t = threadIdx.x; any && t < k; t += blockDim.x)
        known |= (before[first + t] & MAGNITUDE) != 0;
    known = __syncthreads_or(known);
    for (i64 t = threadIdx.x; t < k; t += blockDim.x) {
        u64 i = (u64)(first + t);
        Words four = philox(seed, i >> 2, stream);
        u32 low = i & 1 ? four.of[1] : four.of[0], high = i & 1 ? four.of[3] : four.of[2];
        u32 word = i & 2 ? high : low;
        i32 sum = (word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24);
        rows[i] = known ? widened(before[i]) : (f64)(sum - 510);
    }
}

// Rows of n numbers as integers of 16 bits and a sign, times a unit of each row. A block for a row.
extern "C" __global__ void __launch_bounds__(256)
    fix_rows(const f64* __restrict__ rows, i64 n, i32* __restrict__ integers,
             f64* __restrict__ units) {
    __shared__ i64 scratch[256 / WARP];
    const f64* row = rows + (i64)blockIdx.x * n;
    i64 top = 0;  // bits order numbers that are not negative
    for (i64 t = threadIdx.x; t < n; t += blockDim.x)
        top = max(top, (i64)__double_as_longlong(fabs(row[t])));
    top = scan_block<Max>(top, scratch).total;
    f64 unit = power_of_two((top ? (top >> 52) - 1022 : 0) - FACTOR_NBITS);
    for (i64 t = threadIdx.x; t < n; t += blockDim.x)
        integers[(i64)blockIdx.x * n + t] = (i32)rint(__ddiv_rn(row[t], unit));
    if (threadIdx.x == 0) units[blockIdx.x] = unit;
}

// What sums of products stand for: they count units of the factors and of the matrix. n to a row.
extern "C" __global__ void __launch_bounds__(256)
    scale_rows(const f64* __restrict__ sums, const f64* __restrict__ units, const u32* top, i64 ranks,
               i64 n, f64* __restrict__ rows) {
    f64 unit = power_of_two(exponent_of(*top) - VALUE_NBITS);
    for (i64 i = GCODEC_FIRST; i < ranks * n; i += GCODEC_STEP)
        rows[i] = __dmul_rn(sums[i], __dmul_rn(units[i / n], unit));
}

// The sum of value(i) for n > 0, by tiles, in all threads of a block; see reduce.py. `sums` has room
// for those of tiles, and of tiles of tiles. value is called once for each i, always by one thread.
template <class Value>
__device__ __forceinline__ f64 fold(i64 n, f64* sums, f64* lanes, Value value) {
    i64 count = (n + TILE - 1) / TILE;
    for (i64 tile = 0; tile < count; ++tile) {
        f64 own = 0.0;
        for (i64 i = tile * TILE + threadIdx.x; i < min((tile + 1) * TILE, n); i += LANES)
            own = __dadd_rn(own, value(i));
        own = add_lanes(own, lanes);
        if (threadIdx.x == 0) sums[tile] = own;
    }
    __syncthreads();
    while (count > 1) {
        i64 tiles = (count + TILE - 1) / TILE;
        for (i64 tile = 0; tile < tiles; ++tile) {
            f64 own = 0.0;
            for (i64 i = tile * TILE + threadIdx.x; i < min((tile + 1) * TILE, count); i += LANES)
                own = __dadd_rn(own, sums[i]);
            own = add_lanes(own, lanes);
            if (threadIdx.x == 0) sums[count + tile] = own;
        }
        __syncthreads();
        sums += count;
        count = tiles;
    }
    f64 found = sums[0];
    __syncthreads();
    return found;
}

// Makes rows of m numbers orthonormal, by Gram and Schmidt; see low_rank.py. One block of LANES
// threads, each of which has the same elements of all rows. sums: for `fold`.
extern "C" __global__ void __launch_bounds__(256)
    make_orthonormal(const f64* __restrict__ rows, i64 ranks, i64 m, f64* made, f64* sums) {
    __shared__ f64 lanes[LANES / 2];
#pragma unroll 1
    for (i64 j = 0; j < ranks; ++j) {
        const f64* row = rows + j * m;
        f64* rest = made + j * m;
        f64 before = fold(m, sums, lanes, [=](i64 t) {
            rest[t] = row[t];
            return __dmul_rn(row[t], row[t]);
        });
        f64 share = 0.0;  // of the row before, which is taken away with the next look
#pragma unroll 1
        for (i64 i = 0; i < j; ++i) {
            const f64 *other = made + i * m, *last = other - m;
            share = fold(m, sums, lanes, [=](i64 t) {
                if (i) rest[t] = __dsub_rn(rest[t], __dmul_rn(share, last[t]));
                return __dmul_rn(other[t], rest[t]);
            });
        }
        f64 squares = fold(m, sums, lanes, [=](i64 t) {
            if (j) rest[t] = __dsub_rn(rest[t], __dmul_rn(share, rest[t - m]));
            return __dmul_rn(rest[t], rest[t]);
        });
        bool kept = squares > __dmul_rn(before, DEPENDENT);
        f64 length = __dsqrt_rn(squares);
        for (i64 t = threadIdx.x; t < m; t += LANES)
            rest[t] = kept ? __ddiv_rn(rest[t], length) : 0.0;
    }
}

// Factors as float32: integers times units, and numbers.
extern "C" __global__ void __launch_bounds__(256)
    put_factors(const i32* __restrict__ integers, const f64* __restrict__ units, i64 m,
                const f64* __restrict__ right, i64 k, i64 ranks, u32* __restrict__ out) {
    for (i64 i = GCODEC_FIRST; i < ranks * (m + k); i += GCODEC_STEP) {
        i64 at = i - ranks * m;
        out[i] = narrowed(at < 0 ? __dmul_rn((f64)integers[i], units[i / m]) : right[at]);
    }
}

// The largest magnitudes of rows of n numbers, as bits. A block for each row.
extern "C" __global__ void __launch_bounds__(256)
    largest_of_rows(const u32* __restrict__ rows, i64 n, u32* __restrict__ tops) {
    __shared__ i64 scratch[256 / WARP];
    i64 top = 0;
    for (i64 t = threadIdx.x; t < n; t += blockDim.x)
        top = max(top, (i64)(rows[(i64)blockIdx.x * n + t] & MAGNITUDE));
    top = scan_block<Max>(top, scratch).total;
    if (threadIdx.x == 0) tops[blockIdx.x] = (u32)top;
}

// A bound of the magnitudes of PᵀQ, given the largest of each row. One thread.
extern "C" __global__ void bound_product(const u32* __restrict__ tops, i64 ranks, f64* bound) {
    // tops: those of P, then those of Q
    f64 sum = 0.0;
    for (i64 j = 0; j < ranks; ++j)
        sum = __dadd_rn(sum, __dmul_rn(widened(tops[j]), widened(tops[ranks + j])));
    *bound = sum;
}

__device__ __forceinline__ u32 product_of(const u32* p, const u32* q, i64 ranks, i64 m, i64 k, i64 i) {
    i64 row = i / k, column = i - row * k;
    u32 sum = multiply_bits(p[row], q[column]);
    for (i64 j = 1; j < ranks; ++j)
        sum = add_bits(sum, multiply_bits(p[j * m + row], q[j * k + column]));
    return sum;
}

extern "C" __global__ void __launch_bounds__(256)
    put_products(const u32* __restrict__ p, const u32* __restrict__ q, i64 ranks, i64 m, i64 k,
                 u32* __restrict__ out) {
    for (i64 i = GCODEC_FIRST; i < m * k; i += GCODEC_STEP) out[i] = product_of(p, q, ranks, m, k, i);
}

// Whether some value is not finite; not looked for where a bound says that none can be.
extern "C" __global__ void __launch_bounds__(256)
    pass_float32(const u32* __restrict__ p, const u32* __restrict__ q, i64 ranks, i64 m, i64 k,
                 const f64* __restrict__ bound, u32* found) {
    if (*bound < 0x1p127) return;
    for (i64 i = GCODEC_FIRST; i < m * k; i += GCODEC_STEP)
        if (!is_finite(product_of(p, q, ranks, m, k, i))) *found = 1;
}
