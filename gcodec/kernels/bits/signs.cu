// Twin of signs.py: signs, one bit each, and a sum of magnitudes or of squares.
#include "kernels/numeric/reduce.cuh"

// A block processes a tile. Each of the ceil(n / 32) words contains 32 signs, the first in the most
// significant bit of the first byte.
extern "C" __global__ void sign_tiles(const f32* x, i64 n, i32 squares, f64* sums, u32* words) {
    __shared__ f64 lanes[LANES / 2];
    i64 start = (i64)blockIdx.x * TILE;
    f64 sum = 0.0;
    for (int row = 0; row < TILE / LANES; row++) {
        i64 i = start + row * LANES + threadIdx.x;
        u32 bits = i < n ? bits_of(x[i]) : 0;  // adding a zero changes nothing
        bool negative = bits > SIGN_BIT && !is_nan(bits);
        u32 word = __brev(__ballot_sync(0xFFFFFFFFu, negative));
        // i is a multiple of 32 in the storing threads.
        if (threadIdx.x % 32 == 0 && i < n) words[i / 32] = __byte_perm(word, 0, 0x0123);
        f64 wide = widened(squares ? bits : bits & MAGNITUDE);
        sum = __dadd_rn(sum, squares ? __dmul_rn(wide, wide) : wide);
    }
    sum = add_lanes(sum, lanes);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;  // one block for each tile
}
