// Twins of trellis_search.py: the best path of each lane of a run, and what its levels leave over.
#include "kernels/numeric/floats.cuh"
#include "kernels/quantize/trellis.cuh"

static const i32 CLASSES = 64, LEVELS = 64;  // that have costs; of these, the last is of those above
static const u32 FAR_BITS = 0x7149F2CAu;     // 1e30
static const u32 FINE_BITS = 0x44800000u;    // 1024
static const u32 TWO_BITS = 0x40000000u, ONE_BITS = 0x3F800000u, THREE_BITS = 0x40400000u;

// What the levels of an element cost that are nearest, by h mod 4, as bits: no cost is below 0, so
// that these have the same order. And the halves of their symbols, a byte each.
struct Nearest {
    u32 cost[4], halves;
};

// What a level costs of which the point is so far from it.
__device__ __forceinline__ u32 cost_of(u32 y, i32 h, u32 moved, u32 rate) {
    u32 off = subtract_bits(y, add_bits(bits_of((f32)h), moved));
    return add_bits(multiply_bits(off, off), rate);
}

__device__ __forceinline__ u32 code_of_level(i32 h, i32 k, u32 escape) {
    return k < LEVELS - 1 ? (u32)h : escape >> 1;
}

// `own` has the costs of the class with quantiser 0, `other` those with quantiser 1.
__device__ __forceinline__ Nearest nearest(
    u32 y, const u32* own, const u32* other, u32 one, u32 two, u32 far) {
    Nearest found;
    u32 zero = multiply_bits(y, y), even = add_bits(zero, own[0]), odd = add_bits(zero, other[0]);
    f32 size = float_of(y);
    // 4j, 4j + 1, 4j + 2 and 4j - 1
    i32 j = __float2int_rz(__fadd_rn(size, float_of(TWO_BITS))) >> 2;
    i32 k = 2 * j, h = 4 * j;
    u32 cost = cost_of(y, h, far, own[min(k, LEVELS - 1)]);
    bool empty = j == 0 || even < cost;
    found.cost[0] = empty ? even : cost;
    found.halves = empty ? 0 : code_of_level(h, k, EVEN_ESCAPE);
    j = __float2int_rz(__fadd_rn(size, float_of(ONE_BITS))) >> 2;
    k = 2 * j + 1, h = 4 * j + 1;
    found.cost[1] = cost_of(y, h, j == 0 ? one : far, other[min(k, LEVELS - 1)]);
    found.halves |= code_of_level(h, k, ODD_ESCAPE) << 8;
    j = __float2int_rz(size) >> 2;
    k = 2 * j + 1, h = 4 * j + 2;
    found.cost[2] = cost_of(y, h, j == 0 ? two : far, own[min(k, LEVELS - 1)]);
    found.halves |= code_of_level(h, k, ODD_ESCAPE) << 16;
    j = __float2int_rz(__fadd_rn(size, float_of(THREE_BITS))) >> 2;
    k = 2 * j, h = 4 * j - 1;
    cost = cost_of(y, h, far, other[min(max(k, 0), LEVELS - 1)]);
    empty = j == 0 || odd < cost;
    found.cost[3] = empty ? odd : cost;
    found.halves |= empty ? 0 : code_of_level(h, k, EVEN_ESCAPE) << 24;
    return found;
}

// The least of two ways to a state, where of equals the first is taken; sets a bit for the second.
__device__ __forceinline__ u32 lesser(u32 one, u32 two, u32 bit, u32& ways) {
    if (two < one) ways |= bit;
    return two < one ? two : one;
}

// A thread has a lane of a run, of each `every`-th. Rooms for as many elements as these runs have:
// halves and ways. costs: of two quantisers, of each class, by level.
extern "C" __global__ void __launch_bounds__(64)
    search_paths(const u32* __restrict__ x, i64 n, u32 factor, const u8* __restrict__ classes,
                 const u32* __restrict__ costs, u32 one, u32 two, u32 far, i32 lanes, i64 every,
                 u32* halves, u8* ways, u8* out) {
    i64 runs = ((n + RUN - 1) / RUN + every - 1) / every;
    for (i64 task = GCODEC_FIRST; task < runs * lanes; task += GCODEC_STEP) {
        i64 start = task / lanes * every * RUN, room = task / lanes * RUN, left = n - start;
        i32 lane = (i32)(task % lanes), size = (i32)(left < RUN ? left : RUN), length = size / lanes;
        i32 last = length * lanes + lane;  // the element that is left behind all, if there is one
        i32 turns = length + (last < size);
        u32 before[4] = {0, FAR_BITS, FAR_BITS, FAR_BITS};
        for (i32 t = 0; t < turns; ++t) {
            i64 i = start + (t < length ? lane * length + t : last);
            const u32* own = costs + (classes[i] & (CLASSES - 1)) * LEVELS;
            u32 y = multiply_bits(x[i] & MAGNITUDE, factor);
            Nearest found = nearest(y, own, own + CLASSES * LEVELS, one, two, far);
            u32 way = 0, after[4];
            // Quantiser 0 has h of 0 and 2, and quantiser 1 of 3 and 1, for parities even and odd.
            after[0] = lesser(add_bits(before[0], found.cost[0]),
                              add_bits(before[1], found.cost[2]), 1, way);
            after[1] = lesser(add_bits(before[2], found.cost[3]),
                              add_bits(before[3], found.cost[1]), 2, way);
            after[2] = lesser(add_bits(before[0], found.cost[2]),
                              add_bits(before[1], found.cost[0]), 4, way);
            after[3] = lesser(add_bits(before[2], found.cost[1]),
                              add_bits(before[3], found.cost[3]), 8, way);
            for (int s = 0; s < 4; ++s) before[s] = after[s];
            i64 place = room + t * lanes + lane;  // below room + size
            halves[place] = found.halves;
            ways[place] = (u8)way;
        }
        u32 state = 0, least = before[0];
        for (u32 s = 1; s < 4; ++s)
            if (before[s] < least) {
                least = before[s];
                state = s;
            }
        for (i32 t = turns - 1; t >= 0; --t) {
            i64 i = start + (t < length ? lane * length + t : last), place = room + t * lanes + lane;
            u32 second = (u32)ways[place] >> state & 1, parity = state >> 1 ^ second;
            state = (state & 1) << 1 | second;
            u32 coset = state < 2 ? 2 * parity : 3 - 2 * parity;
            u32 level = halves[place] >> 8 * coset & 0xFF;
            bool negative = x[i] > SIGN_BIT && level > 0 && level < ODD_ESCAPE >> 1;
            out[i] = (u8)(level << 1 | (u32)negative);
        }
    }
}

__device__ __forceinline__ void add_to_sum(u64* sum, i64 own) {
    for (int step = 16; step; step /= 2) own += __shfl_xor_sync(0xFFFFFFFFu, own, step);
    if ((threadIdx.x & 31) == 0) atomicAdd(sum, (u64)own);
}

// Of each `every`-th run. Whole warps; sums: 8
extern "C" __global__ void __launch_bounds__(256)
    sum_path_errors(const u32* __restrict__ x, i64 n, u32 factor, i64 every,
                    const u8* __restrict__ symbols, u64* __restrict__ sums) {
    i64 counts[3] = {0, 0, 0}, rests[3] = {0, 0, 0}, squares = 0, escapes = 0;
    i64 runs = ((n + RUN - 1) / RUN + every - 1) / every;
    for (i64 at = GCODEC_FIRST; at < runs * RUN; at += GCODEC_STEP) {  // the same for a warp
        i64 i = at / RUN * every * RUN + at % RUN;
        if (i >= n) continue;
        f32 y = float_of(multiply_bits(x[i] & MAGNITUDE, factor));
        i32 h = symbols[i] >> 1;
        if (h >= (i32)ODD_ESCAPE >> 1) {
            i32 odd = h == (i32)ODD_ESCAPE >> 1;
            h = __float2int_rz(__fadd_rn(y, 0.5f));
            if (((h + 1) >> 1 & 1) != odd) h += 1 - 2 * (h & 1);
            ++escapes;
        }
        i64 rest = __float2int_rn(__fmul_rn(__fsub_rn(y, (f32)h), float_of(FINE_BITS)));
        squares += rest * rest;
        for (int k = 0; k < 3; ++k) {
            bool here = k < 2 ? h == k + 1 : h > 2;
            counts[k] += here;
            rests[k] += here ? rest : 0;
        }
    }
    for (int k = 0; k < 3; ++k) {
        add_to_sum(&sums[k], counts[k]);
        add_to_sum(&sums[3 + k], rests[k]);
    }
    add_to_sum(&sums[6], squares);
    add_to_sum(&sums[7], escapes);
}
