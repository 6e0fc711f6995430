// The largest coefficients of the DCT of chunks, which the host computes with BLAS and SciPy.
//
// The transform of an axis is a product with its basis in float32, summed in runs of 64 elements. The
// last bits depend on this order, as they depend on the library on the host.
#include "kernels/transform/dct.cuh"
#include "kernels/transform/dct_select.cuh"

// Entry (u, i) of a basis with a transposed table, which has a row for each i.
__device__ __forceinline__ f32 turned_entry(const u32* __restrict__ basis, i32 n, i32 u, i32 i) {
    if (n <= TABLED) return float_of(basis[i * n + u]);
    i32 longs = (n + SHORT - 1) / SHORT;
    const u32* near = basis + u * 2 * (SHORT + longs) + i % SHORT;
    const u32* far = basis + u * 2 * (SHORT + longs) + 2 * SHORT + i / SHORT;
    return float_of(far[0]) * float_of(near[0]) - float_of(far[longs]) * float_of(near[SHORT]);
}

// Sets out(m, u, j) to the sum of entry (u, i)·x(m, i, j) over i. x, out: `size` elements.
__device__ void transform(const f32* x, f32* out, i32 size, i32 n, i32 inner,
                          const u32* __restrict__ basis) {
    for (i32 e = threadIdx.x; e < size; e += blockDim.x) {
        i32 u = e / inner % n;
        const f32* column = x + (e - u * inner);
        f32 total = 0;
        for (i32 run = 0; run < n; run += SHORT) {
            f32 sum = 0;
            for (i32 i = run; i < min(run + SHORT, n); ++i)
                sum += turned_entry(basis, n, u, i) * column[i * inner];
            total += sum;
        }
        out[e] = total;
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
