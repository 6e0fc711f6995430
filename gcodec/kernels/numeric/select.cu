// Twin of select.py: the positions of the k largest magnitudes of an array.
//
// Two histograms determine the level of the k-th largest magnitude, and how many magnitudes equal to
// it are taken: the first counts the upper 14 bits, the second the lower 17 bits in one bin. Then
// warps count the magnitudes above the level, and equal to it, in parts of the array. Prefix sums of
// these counts give the place of each part's positions, which are written in order. The host takes no
// part until the end.
#include "kernels/numeric/compact.cuh"

static const u32 LOW_BITS = 17;
static const i64 PART = 1024;  // elements of a warp

// The state: number of magnitudes that are still to be selected; lower bound of the level; bits of the
// largest magnitude. After choose_bin, the first two are the number of magnitudes to take that equal
// the level, and the level.
static const int NEED = 0, LEVEL = 1, TOP = 2;

extern "C" __global__ void __launch_bounds__(1024)
    choose_bin(const u64* __restrict__ counts, i64 bins, i64 shift, i64* __restrict__ state) {
    // One block of 1024 threads; bins is a multiple of 1024. Finds the bin of the last of the
    // state[NEED] largest magnitudes; all bins count at least as many.
    __shared__ i64 scratch[32];
    i64 need = state[NEED], share = bins / blockDim.x;
    i64 end = bins - threadIdx.x * share;  // thread 0 has the last bins
    i64 own = 0;
    for (i64 bin = end - share; bin < end; ++bin) own += (i64)counts[bin];
    i64 above = scan_block<Sum>(own, scratch).before;
    if (above < need && need <= above + own) {  // true for one thread at most
        i64 bin = end - 1;
        while (bin > end - share && above + (i64)counts[bin] < need) above += (i64)counts[bin--];
        state[NEED] = need - above;
        state[LEVEL] += bin << shift;
    }
}

extern "C" __global__ void __launch_bounds__(256)
    count_within(const u32* __restrict__ x, i64 n, const i64* __restrict__ state,
                 u64* __restrict__ counts) {
    // Whole warps; counts: 2^LOW_BITS. Counts the magnitudes that differ from state[LEVEL] in their
    // LOW_BITS only.
    u32 bin = (u32)state[LEVEL] >> LOW_BITS;
    for (i64 row = GCODEC_FIRST - (threadIdx.x & 31); row < n; row += GCODEC_STEP) {
        i64 i = row + (threadIdx.x & 31);
        u32 bits = i < n ? x[i] & MAGNITUDE : 0;
        bool inside = i < n && bits >> LOW_BITS == bin;
        u32 lanes = __ballot_sync(EVERY_LANE, inside);
        if (!lanes) continue;  // the usual case, the same for the whole warp
        // Magnitudes that equal the first one, possibly all, are counted by one addition.
        u32 first = __shfl_sync(EVERY_LANE, bits, __ffs(lanes) - 1);
        u32 same = __ballot_sync(EVERY_LANE, inside && bits == first);
        u32 place = bits & ((1u << LOW_BITS) - 1);
        if (inside && bits != first) atomicAdd(&counts[place], (u64)1);
        if (inside && (int)(threadIdx.x & 31) == __ffs(lanes) - 1)
            atomicAdd(&counts[place], (u64)__popc(same));
    }
}

extern "C" __global__ void __launch_bounds__(256)
    count_parts(const u32* __restrict__ x, i64 n, i64* __restrict__ state, i64* __restrict__ above,
                i64* __restrict__ equal) {
    // Whole warps; above and equal have an element for each part. state[TOP] is raised.
    i32 level = (i32)state[LEVEL];
    u32 top = 0;
    for (i64 part = GCODEC_FIRST >> 5; part * PART < n; part += GCODEC_STEP >> 5) {
        Matches own = count_range(x, part * PART, min(part * PART + PART, n), level, top);
        if ((threadIdx.x & 31) == 0) {
            above[part] = own.above;
            equal[part] = own.equal;
        }
    }
    for (int step = 16; step; step /= 2) top = max(top, __shfl_xor_sync(EVERY_LANE, top, step));
    if ((threadIdx.x & 31) == 0) atomicMax((u64*)&state[TOP], (u64)top);
}

extern "C" __global__ void __launch_bounds__(1024)
    scan_parts(i64 parts, i64* __restrict__ above, i64* __restrict__ equal) {
    // Two blocks of 1024 threads, one for each array of parts + 1 elements, which are replaced by
    // their exclusive prefix sums.
    __shared__ i64 scratch[32];
    static const i64 PER_THREAD = 8;  // elements
    i64* counts = blockIdx.x ? equal : above;
    i64 before = 0;
    for (i64 row = 0; row < parts; row += PER_THREAD * blockDim.x) {  // the same for all threads
        i64 first = row + PER_THREAD * threadIdx.x, stop = min(first + PER_THREAD, parts), own = 0;
        for (i64 k = first; k < stop; ++k) own += counts[k];
        Scanned all = scan_block<Sum>(own, scratch);
        i64 sum = before + all.before;
        for (i64 k = first; k < stop; ++k) {
            i64 count = counts[k];
            counts[k] = sum;
            sum += count;
        }
        before += all.total;
    }
    if (threadIdx.x == 0) counts[parts] = before;
}

extern "C" __global__ void __launch_bounds__(256)
    write_positions(const u32* __restrict__ x, i64 n, const i64* __restrict__ state,
                    const i64* __restrict__ above, const i64* __restrict__ equal,
                    i64* __restrict__ out, i64 room) {
    // Whole warps; above and equal are the results of scan_parts; out has `room` elements. Writes the
    // positions of all magnitudes above state[LEVEL], and of the first state[NEED] equal to it.
    i32 level = (i32)state[LEVEL];
    for (i64 part = GCODEC_FIRST >> 5; part * PART < n; part += GCODEC_STEP >> 5) {
        if (above[part] == above[part + 1] && equal[part] == equal[part + 1]) continue;
        Matches before = {above[part], equal[part]};
        write_range(x, part * PART, min(part * PART + PART, n), level, state[NEED], before,
                    [&](i64 place, i64 i) {
                        if (place < room) out[place] = i;
                    });
    }
}
