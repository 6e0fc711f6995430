// Twin of dct_inverse.py: the inverse DCT of chunks with few coefficients, in a fixed order.
//
// The kernel lists the rows with coefficients, by number and first coefficient, and the layers of
// rows, by number and first row. It computes R, P and x of dct_inverse.py from these lists, in rising
// order; each product and each sum is rounded once. Rows without coefficients would add ±0, and are
// omitted.
#include "kernels/transform/dct.cuh"
#include "kernels/numeric/scan.cuh"

static const i32 LISTED = 512;  // rows of the longest lists in shared memory

// Lists the changes of number(q) for q from 0 to count - 1, at most `most`. Returns their number; the
// array `first` gets the q of each change, followed by count, and `numbers` gets its number(q).
template <class Number>
__device__ __forceinline__ i32 list_changes(i32 count, i32 most, i32* first, i32* numbers,
                                            i64* scratch, Number number) {
    i32 changes = 0;
    for (i32 row = 0; row < count; row += (i32)blockDim.x) {  // the same for all threads
        i32 q = row + (i32)threadIdx.x;
        bool change = q < count && (q == 0 || number(q) != number(q - 1));
        Scanned all = scan_block<Sum>(change, scratch);
        i32 place = changes + (i32)all.before;
        if (change && place < most) {
            first[place] = q;
            numbers[place] = number(q);
        }
        changes += (i32)all.total;
    }
    changes = min(changes, most);
    if (threadIdx.x == 0) first[changes] = count;
    __syncthreads();
    return changes;
}

extern "C" __global__ void __launch_bounds__(256, 4)
    inverse(const i64* __restrict__ starts, const i32* __restrict__ places,
            const u32* __restrict__ values, i64 total, i64 chunks, i64 n, i64 rows, i64 columns,
            i32 a, i32 b, i32 c, const u32* __restrict__ first, const u32* __restrict__ middle,
            const u32* __restrict__ last, i32 most, u32* scratch, i32* lists,
            u32* __restrict__ out) {
    // 256 threads; starts: chunks + 1, places and values: total, out: n elements. For the layout,
    // the bases and scratch, see dct_largest; the tables are not transposed here. A chunk has
    // coefficients in at most `most` <= a·b rows; lists: 4·most + 2 for each block if `most` exceeds
    // LISTED.
    __shared__ u32 held[2 * HELD];
    __shared__ i32 listed[4 * LISTED + 2];
    __shared__ i64 sums[8];
    Layout layout = {n, rows, columns, a, b, c};
    i32 size = layout.size(), plane = b * c;
    u32* row_of = size <= HELD ? held : scratch + (i64)blockIdx.x * 2 * size;
    u32* plane_of = row_of + size;
    i32* begins = most <= LISTED ? listed : lists + (i64)blockIdx.x * (4 * most + 2);
    i32 *lines = begins + most + 1, *layers = lines + most, *depths = layers + most + 1;
    for (i64 chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        i64 start = min(max(starts[chunk], (i64)0), total);
        i32 count = (i32)min(min(max(starts[chunk + 1], start), total) - start, (i64)size);
        // Inside the chunk, even for invalid places.
        auto place = [&](i32 q) { return min(max(places[start + q], 0), size - 1); };
        i32 height =
            list_changes(count, most, begins, lines, sums, [&](i32 q) { return place(q) / c; });
        i32 depth =
            list_changes(height, height, layers, depths, sums, [&](i32 h) { return lines[h] / b; });
        for (i32 e = threadIdx.x; e < height * c; e += blockDim.x) {
            i32 h = e / c, j = e % c;
            u32 sum = 0;
            for (i32 q = begins[h]; q < begins[h + 1]; ++q) {
                u32 factor = entry(last, c, place(q) - lines[h] * c, j);
                sum = add_bits(sum, multiply_bits(values[start + q], factor));
            }
            row_of[e] = sum;
        }
        __syncthreads();
        if (a > 1) {
            for (i32 e = threadIdx.x; e < depth * plane; e += blockDim.x) {
                i32 d = e / plane, i = e % plane / c, j = e % c;
                u32 sum = 0;
                for (i32 h = layers[d]; h < layers[d + 1]; ++h) {
                    u32 factor = entry(middle, b, lines[h] - depths[d] * b, i);
                    sum = add_bits(sum, multiply_bits(factor, row_of[h * c + j]));
                }
                plane_of[e] = sum;
            }
            __syncthreads();
        }
        for (i32 e = threadIdx.x; e < size; e += blockDim.x) {
            i64 at = layout.element(chunk, e);
            if (at == n) continue;
            i32 t = e / plane, i = e % plane / c, j = e % c;
            u32 sum = 0;
            if (a > 1) {
                for (i32 d = 0; d < depth; ++d) {
                    u32 factor = entry(first, a, depths[d], t);
                    sum = add_bits(sum, multiply_bits(factor, plane_of[d * plane + e % plane]));
                }
            } else {
                for (i32 h = 0; h < height; ++h) {
                    u32 factor = entry(middle, b, lines[h], i);
                    sum = add_bits(sum, multiply_bits(factor, row_of[h * c + j]));
                }
            }
            out[at] = sum;
        }
        __syncthreads();  // shared memory may be overwritten
    }
}
