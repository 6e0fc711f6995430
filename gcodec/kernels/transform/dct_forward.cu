// The largest coefficients of the DCT of chunks.
//
// Up to TABLED points, the operations are those of dct_forward.py, in the same order. A larger basis
// is not a table, so the products of its factors are summed in runs of 64 elements; the host uses
// SciPy there. Transposed tables let neighboring threads load neighboring words.
#include "kernels/transform/dct.cuh"
#include "kernels/transform/dct_select.cuh"

static const i32 TOGETHER = 8;  // runs that are summed at once

// Adds and subtracts mirrored elements of axes of n points: sums take the place of the first half,
// differences that of the second half, in falling order. `folds` times, each time of the sums.
__device__ void fold_mirrored(f32* x, i32 size, i32 n, i32 inner, i32 folds) {
    for (i32 fold = 0; fold < folds; ++fold) {
        i32 points = n >> fold, half = points / 2, pairs = size / n * half;
        for (i32 p = threadIdx.x; p < pairs; p += blockDim.x) {
            i32 column = p % inner, j = p / inner % half, chunk = p / (inner * half);
            i32 low = (chunk * n + j) * inner + column, high = low + (points - 1 - 2 * j) * inner;
            u32 a = bits_of(x[low]), b = bits_of(x[high]);
            x[low] = float_of(add_bits(a, b));
            x[high] = float_of(subtract_bits(a, b));
        }
        __syncthreads();
    }
}

// Coefficient u of n <= TABLED points, which are column[i * inner] after `fold_mirrored`.
__device__ __forceinline__ f32 folded_sum(const f32* column, i32 n, i32 inner, i32 u, i32 folds,
                                          const u32* __restrict__ basis) {
    i32 fold = u ? min(__ffs(u) - 1, folds) : folds;
    bool sums = fold == folds;  // whether the coefficient is one of the last sums
    i32 count = n >> (sums ? fold : fold + 1);
    const f32* values = column + (sums ? 0 : count * inner);
    u32 total = 0;
#pragma unroll 2  // more would spill
    for (i32 i = 0; i < count; ++i) {
        u32 factor = basis[(sums ? i : count - 1 - i) * n + u];
        total = fused_bits(factor, bits_of(values[i * inner]), total);
    }
    return float_of(total);
}

// The sum of entry (u, i)·x(i) over i for n > TABLED, where x(i) is column[i * inner]. An entry is
// cos α·cos β − sin α·sin β, where α is the same for a run, so the sums of x(i)·cos β and of
// x(i)·sin β are multiplied by cos α and sin α.
__device__ __noinline__ f32 long_sum(const f32* column, i32 n, i32 inner, i32 u,
                                     const u32* __restrict__ basis) {
    i32 longs = (n + SHORT - 1) / SHORT;
    const u32 *near = basis + u, *far = near + 2 * SHORT * n;  // a row for each factor
    f32 total = 0;
    for (i32 first = 0; first < longs; first += TOGETHER) {
        f32 cosines[TOGETHER] = {}, sines[TOGETHER] = {};
#pragma unroll 1
        for (i32 r = 0; r < SHORT; ++r) {
            f32 cosine = float_of(near[r * n]), sine = float_of(near[(SHORT + r) * n]);
#pragma unroll
            for (i32 k = 0; k < TOGETHER; ++k) {
                i32 i = (first + k) * SHORT + r;
                f32 value = i < n ? column[i * inner] : 0.0f;
                cosines[k] += cosine * value;
                sines[k] += sine * value;
            }
        }
#pragma unroll
        for (i32 k = 0; k < TOGETHER; ++k) {
            i32 run = min(first + k, longs - 1);  // after the last run, both sums are 0
            total += float_of(far[run * n]) * cosines[k] - float_of(far[(longs + run) * n]) * sines[k];
        }
    }
    return total;
}

// Sets out(m, u, j) to the sum of entry (u, i)·x(m, i, j) over i, and overwrites x, too. x, out:
// `size` elements.
__device__ void transform(f32* x, f32* out, i32 size, i32 n, i32 inner, i32 folds,
                          const u32* __restrict__ basis) {
    if (n <= TABLED) fold_mirrored(x, size, n, inner, folds);
    for (i32 e = threadIdx.x; e < size; e += blockDim.x) {
        i32 u = e / inner % n;
        const f32* column = x + (e - u * inner);
        out[e] = n <= TABLED ? folded_sum(column, n, inner, u, folds, basis)
                             : long_sum(column, n, inner, u, basis);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(256, 4)
    dct_largest(const u32* __restrict__ x, i64 n, i64 rows, i64 columns, bool edge, i64 chunks,
                i32 a, i32 b, i32 c, i32 folds_a, i32 folds_b, i32 folds_c,
                const u32* __restrict__ first, const u32* __restrict__ middle,
                const u32* __restrict__ last, i32 k, f32* scratch, i32* __restrict__ places,
                u32* __restrict__ values, u32* __restrict__ top) {
    // 256 threads; x: n > 0 elements; rows, columns: of a matrix, or columns is 0; edge: whether
    // the last elements fill up chunks, or else zeros. The bases have a, b and c points; folds_a,
    // folds_b and folds_c say how often these are halved. The tables of the bases are transposed.
    // 1 <= k <= a·b·c; places and values: chunks·k; scratch: 2·a·b·c for each block if chunks have
    // more than HELD elements.
    __shared__ f32 held[2 * HELD];
    Layout layout = {n, rows, columns, a, b, c};
    i32 size = layout.size();
    f32* one = size <= HELD ? held : scratch + (i64)blockIdx.x * 2 * size;
    for (i64 chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        f32 *from = one, *to = one + size;
        for (i32 e = threadIdx.x; e < size; e += blockDim.x) {
            i64 at = layout.element(chunk, e);
            if (at == n && edge) at = layout.nearest(chunk, e);
            from[e] = at < n ? float_of(x[at]) : 0.0f;
        }
        __syncthreads();
        for (int axis = 0; axis < 3; ++axis) {
            i32 points = axis == 0 ? c : axis == 1 ? b : a;
            if (points == 1) continue;
            const u32* basis = axis == 0 ? last : axis == 1 ? middle : first;
            i32 inner = axis == 0 ? 1 : axis == 1 ? c : b * c;
            i32 folds = axis == 0 ? folds_c : axis == 1 ? folds_b : folds_a;
            transform(from, to, size, points, inner, folds, basis);
            f32* swap = to;
            to = from;
            from = swap;
        }
        select_chunk((const u32*)from, size, k, places + chunk * k, values + chunk * k, top);
    }
}
