// The best path of each lane of a run, and the errors of its levels; see trellis_search.py.
#include "kernels/numeric/floats.cuh"
#include "kernels/quantize/level_errors.cuh"
#include "kernels/quantize/trellis.cuh"

static const i32 CLASSES = 64, LEVELS = 64;  // the last level is an escape
static const u32 FAR_BITS = 0x7149F2CAu;     // 1e30
static const u32 FINE_BITS = 0x44800000u;    // 1024
static const u32 TWO_BITS = 0x40000000u, ONE_BITS = 0x3F800000u, THREE_BITS = 0x40400000u;

// The costs of the nearest levels of an element, by h mod 4, and the halves of their symbols, a byte
// each. Costs are bits of float32; none is negative, so bits have the same order as numbers.
struct Nearest {
    u32 cost[4], halves;
};

// The cost of a level whose point is `moved` from it.
__device__ __forceinline__ u32 cost_of(u32 y, i32 h, u32 moved, u32 rate) {
    u32 off = subtract_bits(y, add_bits(bits_of((f32)h), moved));
    return add_bits(multiply_bits(off, off), rate);
}

__device__ __forceinline__ u32 code_of_level(i32 h, i32 k, u32 escape) {
    return k < LEVELS - 1 ? (u32)h : escape >> 1;
}

// own, other: costs of the class with quantizer 0 and with quantizer 1.
__device__ __forceinline__ Nearest nearest(
    u32 y, const u32* own, const u32* other, u32 one, u32 two, u32 far) {
    Nearest levels;
    u32 zero = multiply_bits(y, y), even = add_bits(zero, own[0]), odd = add_bits(zero, other[0]);
    f32 size = float_of(y);
    // 4j, 4j + 1, 4j + 2 and 4j - 1
    i32 j = __float2int_rz(__fadd_rn(size, float_of(TWO_BITS))) >> 2;
    i32 k = 2 * j, h = 4 * j;
    u32 cost = cost_of(y, h, far, own[min(k, LEVELS - 1)]);
    bool empty = j == 0 || even < cost;
    levels.cost[0] = empty ? even : cost;
    levels.halves = empty ? 0 : code_of_level(h, k, EVEN_ESCAPE);
    j = __float2int_rz(__fadd_rn(size, float_of(ONE_BITS))) >> 2;
    k = 2 * j + 1, h = 4 * j + 1;
    levels.cost[1] = cost_of(y, h, j == 0 ? one : far, other[min(k, LEVELS - 1)]);
    levels.halves |= code_of_level(h, k, ODD_ESCAPE) << 8;
    j = __float2int_rz(size) >> 2;
    k = 2 * j + 1, h = 4 * j + 2;
    levels.cost[2] = cost_of(y, h, j == 0 ? two : far, own[min(k, LEVELS - 1)]);
    levels.halves |= code_of_level(h, k, ODD_ESCAPE) << 16;
    j = __float2int_rz(__fadd_rn(size, float_of(THREE_BITS))) >> 2;
    k = 2 * j, h = 4 * j - 1;
    cost = cost_of(y, h, far, other[min(max(k, 0), LEVELS - 1)]);
    empty = j == 0 || odd < cost;
    levels.cost[3] = empty ? odd : cost;
    levels.halves |= empty ? 0 : code_of_level(h, k, EVEN_ESCAPE) << 24;
    return levels;
}

// The cheaper of two ways to a state, the first of equals; sets a bit for the second.
__device__ __forceinline__ u32 lesser(u32 one, u32 two, u32 bit, u32& decided) {
    if (two < one) decided |= bit;
    return two < one ? two : one;
}

// Searches every `run_step`-th run; a thread has a lane. halves, decisions: an element for each one of
// these runs. costs: by quantizer, class and level; one, two, far: distances of the points.
extern "C" __global__ void __launch_bounds__(64)
    search_paths(const u32* __restrict__ x, i64 n, u32 factor, const u8* __restrict__ classes,
                 const u32* __restrict__ costs, u32 one, u32 two, u32 far, i32 lanes, i64 run_step,
                 u32* halves, u8* decisions, u8* out) {
    i64 runs = ((n + RUN - 1) / RUN + run_step - 1) / run_step;
    for (i64 task = GCODEC_FIRST; task < runs * lanes; task += GCODEC_STEP) {
        i64 start = task / lanes * run_step * RUN, room = task / lanes * RUN, left = n - start;
        i32 lane = (i32)(task % lanes), size = (i32)(left < RUN ? left : RUN), length = size / lanes;
        i32 last = length * lanes + lane;  // the element after all whole turns, if any
        i32 turns = length + (last < size);
        u32 before[4] = {0, FAR_BITS, FAR_BITS, FAR_BITS};
        for (i32 t = 0; t < turns; ++t) {
            i64 i = start + (t < length ? lane * length + t : last);
            const u32* own = costs + (classes[i] & (CLASSES - 1)) * LEVELS;
            u32 y = multiply_bits(x[i] & MAGNITUDE, factor);
            Nearest levels = nearest(y, own, own + CLASSES * LEVELS, one, two, far);
            u32 decided = 0, after[4];
            // For even and odd parity, quantizer 0 has h mod 4 of 0 and 2, quantizer 1 of 3 and 1.
            after[0] = lesser(add_bits(before[0], levels.cost[0]),
                              add_bits(before[1], levels.cost[2]), 1, decided);
            after[1] = lesser(add_bits(before[2], levels.cost[3]),
                              add_bits(before[3], levels.cost[1]), 2, decided);
            after[2] = lesser(add_bits(before[0], levels.cost[2]),
                              add_bits(before[1], levels.cost[0]), 4, decided);
            after[3] = lesser(add_bits(before[2], levels.cost[1]),
                              add_bits(before[3], levels.cost[3]), 8, decided);
            for (int s = 0; s < 4; ++s) before[s] = after[s];
            i64 place = room + t * lanes + lane;  // below room + size
            halves[place] = levels.halves;
            decisions[place] = (u8)decided;
        }
        u32 state = 0, least = before[0];
        for (u32 s = 1; s < 4; ++s)
            if (before[s] < least) {
                least = before[s];
                state = s;
            }
        for (i32 t = turns - 1; t >= 0; --t) {
            i64 i = start + (t < length ? lane * length + t : last), place = room + t * lanes + lane;
            u32 second = (u32)decisions[place] >> state & 1, parity = state >> 1 ^ second;
            state = (state & 1) << 1 | second;
            u32 coset = state < 2 ? 2 * parity : 3 - 2 * parity;
            u32 level = halves[place] >> 8 * coset & 0xFF;
            bool negative = x[i] > SIGN_BIT && level > 0 && level < ODD_ESCAPE >> 1;
            out[i] = (u8)(level << 1 | (u32)negative);
        }
    }
}

// Sums the errors of every `run_step`-th run. Whole warps; sums: 8.
extern "C" __global__ void __launch_bounds__(256)
    sum_path_errors(const u32* __restrict__ x, i64 n, u32 factor, i64 run_step,
                    const u8* __restrict__ symbols, u64* __restrict__ sums) {
    LevelErrors errors;
    i64 runs = ((n + RUN - 1) / RUN + run_step - 1) / run_step;
    for (i64 at = GCODEC_FIRST; at < runs * RUN; at += GCODEC_STEP) {  // the same for a warp
        i64 i = at / RUN * run_step * RUN + at % RUN;
        if (i >= n) continue;
        f32 y = float_of(multiply_bits(x[i] & MAGNITUDE, factor));
        i32 h = symbols[i] >> 1;
        if (h >= (i32)ODD_ESCAPE >> 1) {
            i32 odd = h == (i32)ODD_ESCAPE >> 1;
            h = __float2int_rz(__fadd_rn(y, 0.5f));
            if (((h + 1) >> 1 & 1) != odd) h += 1 - 2 * (h & 1);
            ++errors.escapes;
        }
        errors.add(h, __float2int_rn(__fmul_rn(__fsub_rn(y, (f32)h), float_of(FINE_BITS))));
    }
    errors.add_to(sums);
}
