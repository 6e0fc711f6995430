// The largest coefficients of the DCT of chunks, which the host computes in another order.
//
// The transform of an axis is a product with its basis in float32, summed in runs of 64 elements. The
// last bits depend on this order, and differ from those of dct_forward.py. Transposed tables let
// neighboring threads load neighboring words.
#include "kernels/transform/dct.cuh"
#include "kernels/transform/dct_select.cuh"

static const i32 TOGETHER = 8;  // runs that are summed at once

// The sum of entry (u, i)·x(i) over i, where x(i) is column[i * inner]; n <= TABLED.
__device__ __forceinline__ f32 short_sum(const f32* column, i32 n, i32 inner, i32 u,
                                         const u32* __restrict__ basis) {
    f32 total = 0;
    for (i32 run = 0; run < n; run += SHORT) {
        f32 sum = 0;
        for (i32 i = run; i < min(run + SHORT, n); ++i)
            sum += float_of(basis[i * n + u]) * column[i * inner];
        total += sum;
    }
    return total;
}

// The same for n > TABLED. An entry is cos α·cos β − sin α·sin β, where α is the same for a run, so
// the sums of x(i)·cos β and of x(i)·sin β are multiplied by cos α and sin α.
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

// Sets out(m, u, j) to the sum of entry (u, i)·x(m, i, j) over i. x, out: `size` elements.
__device__ void transform(const f32* x, f32* out, i32 size, i32 n, i32 inner,
                          const u32* __restrict__ basis) {
    for (i32 e = threadIdx.x; e < size; e += blockDim.x) {
        i32 u = e / inner % n;
        const f32* column = x + (e - u * inner);
        out[e] = n <= TABLED ? short_sum(column, n, inner, u, basis)
                             : long_sum(column, n, inner, u, basis);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(256, 4)
    dct_largest(const u32* __restrict__ x, i64 n, i64 rows, i64 columns, bool edge, i64 chunks,
                i32 a, i32 b, i32 c, const u32* __restrict__ first, const u32* __restrict__ middle,
                const u32* __restrict__ last, i32 k, f32* scratch, i32* __restrict__ places,
                u32* __restrict__ values, u32* __restrict__ top) {
    // 256 threads; x: n > 0 elements; rows, columns: of a matrix, or columns is 0; edge: whether
    // the last elements fill up chunks, or else zeros. The bases have a, b and c points, and their
    // tables are transposed. 1 <= k <= a·b·c; places and values: chunks·k; scratch: 2·a·b·c for each
    // block if chunks have more than HELD elements.
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
            transform(from, to, size, points, axis == 0 ? 1 : axis == 1 ? c : b * c, basis);
            f32* swap = to;
            to = from;
            from = swap;
        }
        select_chunk((const u32*)from, size, k, places + chunk * k, values + chunk * k, top);
    }
}
