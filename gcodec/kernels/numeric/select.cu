// Twin of select.py: the k largest magnitudes of an array, by their positions.
//
// Two histograms, of the upper 14 bits of magnitudes and of the 17 below these in one bin, tell the
// level of the k-th largest, and how many of those that are equal to it are taken. Then warps count
// what they have of each, in parts of the array, sums over the parts tell where each begins, and
// the positions are written in their order. Nothing of that goes to the host in between.
#include "kernels/numeric/compact.cuh"
#include "kernels/numeric/scan.cuh"

static const u32 LOW_BITS = 17;
static const i64 PART = 4096;  // elements of a warp

// Of the state, which kernels hand on: how many magnitudes are still to be found; the level, or its
// lowest number; the bits of the largest magnitude. With choose_bin they become those that are
// equal to the level and taken, and the level.
static const int NEED = 0, LEVEL = 1, TOP = 2;

extern "C" __global__ void __launch_bounds__(1024)
    choose_bin(const u64* __restrict__ counts, i64 bins, i64 shift, i64* __restrict__ state) {
    // One block of 1024 threads, of which bins are a multiple. Finds the bin of the last of the
    // state[NEED] largest, of which there are as many in all bins.
    __shared__ i64 scratch[32];
    i64 need = state[NEED], share = bins / blockDim.x;
    i64 end = bins - threadIdx.x * share;  // a thread has the bins below, so that 0 has the last
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
    // Whole warps; counts: 2^LOW_BITS. Counts the magnitudes from state[LEVEL] on that differ from
    // it in their LOW_BITS only.
    u32 bin = (u32)state[LEVEL] >> LOW_BITS;
    for (i64 row = GCODEC_FIRST - (threadIdx.x & 31); row < n; row += GCODEC_STEP) {
        i64 i = row + (threadIdx.x & 31);
        u32 bits = i < n ? x[i] & MAGNITUDE : 0;
        bool inside = i < n && bits >> LOW_BITS == bin;
        u32 lanes = __ballot_sync(ALL_LANES, inside);
        if (!lanes) continue;  // for all of the warp, and mostly
        // Those that are equal to the first one are counted at once: all may be.
        u32 first = __shfl_sync(ALL_LANES, bits, __ffs(lanes) - 1);
        u32 same = __ballot_sync(ALL_LANES, inside && bits == first);
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
        Found found = count_range(x, part * PART, min(part * PART + PART, n), level, top);
        if ((threadIdx.x & 31) == 0) {
            above[part] = found.above;
            equal[part] = found.equal;
        }
    }
    for (int step = 16; step; step /= 2) top = max(top, __shfl_xor_sync(ALL_LANES, top, step));
    if ((threadIdx.x & 31) == 0) atomicMax((u64*)&state[TOP], (u64)top);
}

extern "C" __global__ void __launch_bounds__(1024)
    scan_parts(i64 parts, i64* __restrict__ above, i64* __restrict__ equal) {
    // Two blocks of 1024 threads, one for each array of parts + 1 elements: each becomes the sum of
    // those before it, and the last one that of all.
    __shared__ i64 scratch[32];
    static const i64 EACH = 8;  // elements of a thread
    i64* counts = blockIdx.x ? equal : above;
    i64 before = 0;
    for (i64 row = 0; row < parts; row += EACH * blockDim.x) {  // the same for all threads
        i64 first = row + EACH * threadIdx.x, stop = min(first + EACH, parts), own = 0;
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
    // Whole warps; above and equal are those of scan_parts, out has `room` elements. Taken are all
    // above state[LEVEL], and the first state[NEED] that are equal to it.
    i32 level = (i32)state[LEVEL];
    for (i64 part = GCODEC_FIRST >> 5; part * PART < n; part += GCODEC_STEP >> 5) {
        if (above[part] == above[part + 1] && equal[part] == equal[part + 1]) continue;
        Found before = {above[part], equal[part]};
        write_range(x, part * PART, min(part * PART + PART, n), level, state[NEED], before,
                    [&](i64 place, i64 i) {
                        if (place < room) out[place] = i;
                    });
    }
}
