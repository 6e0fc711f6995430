// The search for the scale of a tensor of minifloats. It does the work of gennorm.py and
// scale_errors.py, in the same order; the host decides nothing.
//
// The kernels run one after the other, most of them with one block. Each stores its decisions in a
// `Search`, which the next ones read; a kernel without work ends at once.
#include "kernels/bits/listed.cuh"
#include "kernels/numeric/log_histogram.cuh"
#include "kernels/quantize/minifloat_error.cuh"
#include "kernels/numeric/reduce.cuh"

static const i64 FINITE = INFINITY_BITS >> SHIFT;         // bins of finite numbers
static const i64 UNIT_BIN = (u32)(127 - 64) << 23 >> SHIFT;  // the bin of 2^-64
static const i64 ENOUGH = 1 << 18;  // nonzero elements of a sample; with fewer, all elements are used
static const i64 FEW = 1 << 18;     // elements that are all measured one by one
static const i64 TOP = 1 << 12, SCARCE = 1 << 10, NEAR_TOP = 1 << 7;
static const i64 MOMENTS = 1 << 12;  // least elements for an estimate by moments
static const int STEPS = 32, LOCAL = 8, LARGE = 4, ROUNDS = 3;
static const i64 MOST_SCALES = 1 << 12;  // scales of the grid: 127 octaves
static const f64 TOLERANCE = 1e-3;
static const int HISTOGRAM = 0, CO3 = 2;  // rules

// Places in the tables of gennorm_tables.txt and of powers of two, one after the other.
static const int KNOTS = 65, ROOTS = 24, NEARBY = 6;
static const int RATIOS = 0, BETAS = KNOTS, INVERSE = 2 * KNOTS, ROW = 3 * KNOTS, ROOTS_AT = 4 * KNOTS,
                 FRACTIONS = ROOTS_AT + ROOTS, NEARBY_AT = FRACTIONS + STEPS;

enum Method { KNOWN, MEASURED, BINNED, LARGEST_APART };

struct Search {
    f64 unit;             // of all numbers below
    f64 mean, energy;     // by the bins alone: the mean magnitude, the sum of the squares
    f64 largest;          // upper bound of the magnitudes
    f64 total, squares;   // sums of the magnitudes and of their squares, by the sample too
    f64 lower_squares;    // the same without the largest elements, if these are apart
    f64 wanted, least;    // best scale so far; least scale of a message
    i64 lifted;           // whether values are multiplied by 2^64
    i64 any;              // whether any value is not 0
    i64 size;
    i64 first;            // bin from which on elements are measured one by one, if apart
    i64 low, scales;      // octave of the first scale of the grid; number of scales
    i64 method;           // a `Method`
    i64 tried, measured;  // number of scales to try; how many of them have an error already
};

// A sample, or all elements of a tensor with too few nonzero ones in the sample.
struct Picked {
    const u32* x;
    i64 n;
    bool all;
};

__device__ __forceinline__ Picked picked(const u32* sample, i64 m, const u32* all, i64 n,
                                         const u64* nonzero) {
    bool whole = m < n && (i64)*nonzero < ENOUGH;
    return Picked{whole ? all : sample, whole ? n : m, whole};
}

// Counts the elements other than 0; −0 counts too.
extern "C" __global__ void __launch_bounds__(256)
    count_nonzero(const u32* __restrict__ x, i64 n, u64* nonzero) {
    u64 own = 0;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) own += x[i] != 0;
    for (int step = 16; step; step /= 2) own += __shfl_xor_sync(EVERY_LANE, own, step);
    if (threadIdx.x % WARP == 0 && own) atomicAdd(nonzero, own);
}

// Writes all of x + decay * residual, if the sample is not enough.
extern "C" __global__ void __launch_bounds__(256)
    correct_all(const u32* __restrict__ x, const u32* __restrict__ residual, u32 decay, i64 n,
                const u64* __restrict__ nonzero, u32* __restrict__ out) {
    if ((i64)*nonzero >= ENOUGH) return;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP)
        out[i] = add_bits(x[i], multiply_bits(decay, residual[i]));
}

// In the next kernels, `sample` has m of the n elements in `all`. counts: 2 * BINS zeros, for the
// values and for the lifted values.

extern "C" __global__ void __launch_bounds__(256)
    count_picked(const u32* __restrict__ sample, i64 m, const u32* __restrict__ all, i64 n,
                 const u64* __restrict__ nonzero, u64* __restrict__ counts) {
    Picked values = picked(sample, m, all, n, nonzero);
    count_all(values.x, values.n, false, counts);
}

// Decides to lift the values if all magnitudes are below 2^-64.
extern "C" __global__ void __launch_bounds__(256)
    choose_unit(const u64* __restrict__ counts, u8* __restrict__ memory) {
    Search* search = (Search*)memory;
    int large = 0;
    for (i64 k = UNIT_BIN + threadIdx.x; k < BINS; k += blockDim.x) large |= counts[k] != 0;
    large = __syncthreads_or(large);
    if (threadIdx.x) return;
    search->lifted = !large;
    search->unit = large ? 1.0 : 0x1p-64;
}

extern "C" __global__ void __launch_bounds__(256)
    count_lifted(const u32* __restrict__ sample, i64 m, const u32* __restrict__ all, i64 n,
                 const u64* __restrict__ nonzero, const u8* __restrict__ memory,
                 u64* __restrict__ counts) {
    if (!((const Search*)memory)->lifted) return;
    Picked values = picked(sample, m, all, n, nonzero);
    count_all(values.x, values.n, true, counts + BINS);
}

// Notes the magnitudes of each bin in a small sample of runs of neighbors. runs: numbers of `count`
// runs of `sample`, then of `all`; none to take all elements. seen: 3 · BINS zeros, which get the
// complement of the least, the largest, and the number of the magnitudes.
extern "C" __global__ void __launch_bounds__(256)
    note_sample(const u32* __restrict__ sample, i64 m, const u32* __restrict__ all, i64 n,
                const u64* __restrict__ nonzero, const u8* __restrict__ memory,
                const i64* __restrict__ runs, i64 count, i64 length, u32* __restrict__ seen) {
    Picked values = picked(sample, m, all, n, nonzero);
    bool lifted = ((const Search*)memory)->lifted;
    i64 taken = count ? count * length : values.n;
    for (i64 k = GCODEC_FIRST; k < taken; k += GCODEC_STEP) {
        i64 at = count ? runs[(values.all ? count : 0) + k / length] * length + k % length : k;
        if ((u64)at >= (u64)values.n) continue;
        u32 magnitude = magnitude_of(values.x[at], lifted), bin = magnitude >> SHIFT;
        atomicMax(&seen[bin], ~magnitude);
        atomicMax(&seen[BINS + bin], magnitude);
        atomicAdd(&seen[2 * BINS + bin], 1u);
    }
}

// The lower bound of a bin.
__device__ __forceinline__ f64 edge_of(i64 k) {
    return k < FINITE ? widened((u32)k << SHIFT) : (f64)(k - FINITE + 1) * 0x1p128;
}

__device__ __forceinline__ f64 mean_square(f64 low, f64 high) {
    f64 sum = __dadd_rn(__dadd_rn(__dmul_rn(low, low), __dmul_rn(low, high)), __dmul_rn(high, high));
    return __ddiv_rn(sum, 3.0);
}

// Adds the terms from `first` to `count` in order, and writes each partial sum to `prefix`, if any.
__device__ __forceinline__ f64 add_up(const f64* terms, i64 first, i64 count, f64* prefix) {
    f64 sum = 0.0;
#pragma unroll 8
    for (i64 k = first; k < count; ++k) {
        sum = __dadd_rn(sum, terms[k]);
        if (prefix) prefix[k] = sum;
    }
    return sum;
}

// Sums over each bin and all bins above it: `above` gets the number of elements, `totals` the sum of
// their magnitudes, `lower` that sum without the largest elements; BINS + 1 each. lows, highs: BINS
// ends of the bins, which are equal for a bin with one magnitude. ranks: BINS ranks of the bins that
// are not empty, from the last on. terms: 6 · BINS.
extern "C" __global__ void __launch_bounds__(1024) add_bins(
    const u64* __restrict__ all_counts, const u32* __restrict__ seen, u8* __restrict__ memory,
    f64* above, f64* totals, f64* lower, f64* lows, f64* highs, i64* ranks, f64* terms) {
    __shared__ i64 scratch[1024 / WARP];
    __shared__ i64 first_of[1], last_of[1];
    Search* search = (Search*)memory;
    const u64* counts = all_counts + (search->lifted ? BINS : 0);
    const i64 each = BINS / 1024;
    i64 begin = BINS - 1 - (i64)threadIdx.x * each, own = 0, full = 0;
    for (i64 k = begin; k > begin - each; --k) {
        if (!(0 < k && k < FINITE)) continue;
        own += (i64)counts[k];
        full += counts[k] != 0;
    }
    Scanned number = scan_block<Sum>(own, scratch), rank = scan_block<Sum>(full, scratch);
    i64 total = number.total + (i64)counts[0], filled = rank.total;
    i64 first = BINS, last = 0;
    for (i64 k = begin; k > begin - each; --k) {
        f64 low = edge_of(k), high = edge_of(k + 1);
        i64 count = 0 < k && k < FINITE ? (i64)counts[k] : 0;
        u32 least = ~seen[k], most = seen[BINS + k], taken = seen[2 * BINS + k];
        bool narrow = least == most && (taken > 1 || (taken == 1 && count == 1));
        f64 only = narrow ? widened(most) : 0.0;
        lows[k] = narrow ? only : low;
        highs[k] = narrow ? only : high;
        if (count) {
            f64 size = (f64)count, *to = terms + rank.before;
            to[0] = __dmul_rn(size, __ddiv_rn(__dadd_rn(low, high), 2.0));
            to[BINS] = __dmul_rn(size, mean_square(low, high));
            to[2 * BINS] = __dmul_rn(size, __ddiv_rn(__dadd_rn(lows[k], highs[k]), 2.0));
            to[3 * BINS] = __dmul_rn(size, mean_square(lows[k], highs[k]));
            number.before += count;
            ++rank.before;
            last = max(last, k);
        }
        above[k] = (f64)number.before;
        ranks[k] = rank.before;
        if (k && number.before <= TOP) first = k;
    }
    if (threadIdx.x == 0) {
        first_of[0] = BINS;
        last_of[0] = 0;
        above[BINS] = totals[BINS] = lower[BINS] = 0.0;
    }
    __syncthreads();
    atomicMin((u64*)first_of, (u64)first);
    atomicMax((u64*)last_of, (u64)last);
    __syncthreads();
    first = first_of[0], last = last_of[0];
    i64 start = first < BINS ? ranks[first] : filled;
    bool apart = total > FEW && last > NEAR_TOP && above[last - NEAR_TOP] <= (f64)SCARCE;
    // Sums in order, each by a thread of its own warp.
    if (threadIdx.x == 0) {
        f64 sum = add_up(terms, 0, filled, nullptr);
        search->mean = __ddiv_rn(sum, (f64)total);
        search->any = filled > 0;
        search->size = total;
        search->first = first;
        search->largest = edge_of(last + 1);
        search->method = apart ? LARGEST_APART : total > FEW ? BINNED : MEASURED;
    } else if (threadIdx.x == WARP) {
        search->energy = add_up(terms + BINS, 0, filled, nullptr);
    } else if (threadIdx.x == 2 * WARP) {
        search->total = add_up(terms + 2 * BINS, 0, filled, terms + 2 * BINS);
    } else if (threadIdx.x == 3 * WARP) {
        search->squares = add_up(terms + 3 * BINS, 0, filled, nullptr);
    } else if (threadIdx.x == 4 * WARP && apart) {
        add_up(terms, start, filled, terms + 4 * BINS);
    } else if (threadIdx.x == 5 * WARP && apart) {
        search->lower_squares = add_up(terms + BINS, start, filled, nullptr);
    }
    __syncthreads();
    for (i64 k = threadIdx.x; k < BINS; k += blockDim.x) {
        i64 at = ranks[k];
        totals[k] = at ? terms[2 * BINS + at - 1] : 0.0;
        lower[k] = apart && at > start ? terms[4 * BINS + at - 1] : 0.0;
    }
}

// The levels of a format, and the steps between them; see scale_errors.py.
struct Ladder {
    const f64* middles;  // (count,), then the differences, then those of the squares
    i32 count;
    f64 first, last;  // levels that are not 0
};

// The bins of all elements.
struct AllBins {
    const f64 *lows, *highs, *above, *totals;
    __device__ __forceinline__ f64 low(i64 k) const { return lows[k]; }
    __device__ __forceinline__ f64 high(i64 k) const { return highs[k]; }
    __device__ __forceinline__ f64 count(i64 k) const { return above[k]; }
    __device__ __forceinline__ f64 total(i64 k) const { return totals[k]; }
};

// The bins below the elements that are measured one by one.
struct LowerBins {
    const f64 *above, *totals;
    i64 first;
    __device__ __forceinline__ f64 low(i64 k) const { return edge_of(k); }
    __device__ __forceinline__ f64 high(i64 k) const { return edge_of(k + 1); }
    __device__ __forceinline__ f64 count(i64 k) const {
        return k < first ? __dsub_rn(above[k], above[first]) : 0.0;
    }
    __device__ __forceinline__ f64 total(i64 k) const { return totals[k]; }
};

struct Sums {
    f64 error, fitted;
};

// The squared error of a scale, and the best scale if each element kept its level.
template <class Bins>
__device__ __forceinline__ Sums sums_of(const Bins& bins, f64 squares, const Ladder& ladder, f64 scale) {
    f64 product = 0.0, norm = 0.0;
#pragma unroll 1
    for (i32 j = 0; j < ladder.count; ++j) {
        f64 threshold = __dmul_rn(scale, ladder.middles[j]);
        i64 place = (narrowed(threshold) & MAGNITUDE) >> SHIFT;  // below BINS
        f64 from = bins.count(place), after = bins.count(place + 1);
        if (from == 0.0) break;
        f64 low = bins.low(place), high = bins.high(place), inside = __dsub_rn(from, after);
        if (threshold >= high) {
            inside = 0.0;
        } else if (threshold > low) {
            f64 share = __ddiv_rn(__dsub_rn(high, threshold), __dsub_rn(high, low));
            inside = __dmul_rn(inside, share);
            low = threshold;
        }
        f64 sum = __dmul_rn(inside, __ddiv_rn(__dadd_rn(high, low), 2.0));
        const f64* rises = ladder.middles + ladder.count + j;
        product = __dadd_rn(product, __dmul_rn(rises[0], __dadd_rn(bins.total(place + 1), sum)));
        norm = __dadd_rn(norm, __dmul_rn(rises[ladder.count], __dadd_rn(after, inside)));
    }
    f64 twice = __dsub_rn(__dmul_rn(2.0, product), __dmul_rn(scale, norm));
    f64 error = __dsub_rn(squares, __dmul_rn(scale, twice));
    return Sums{error, __ddiv_rn(product, norm > 0x1p-1022 ? norm : 0x1p-1022)};
}

// The nearest scale that a message can hold, in units.
__device__ __forceinline__ f64 rounded(f64 scale, const Search* search, f64 most) {
    f64 bounded = __dmul_rn(scale, search->unit);
    bounded = bounded > search->least ? bounded : search->least;
    bounded = bounded < most ? bounded : most;
    return __ddiv_rn(widened(narrowed(bounded)), search->unit);
}

// 2^log, by roots of 2.
__device__ f64 power_of(f64 log, const f64* roots) {
    f64 whole = floor(log), fraction = __dsub_rn(log, whole), power = 1.0;
    for (int k = 0; k < ROOTS; ++k) {
        fraction = __dmul_rn(2.0, fraction);
        if (fraction >= 1.0) {
            fraction = __dsub_rn(fraction, 1.0);
            power = __dmul_rn(power, roots[k]);
        }
    }
    return __dmul_rn(power, power_of_two((i64)whole));
}

// Linear interpolation; constant beyond the knots.
__device__ f64 interpolated(f64 x, const f64* knots, const f64* values) {
    if (!(knots[0] < x && x < knots[KNOTS - 1])) return x <= knots[0] ? values[0] : values[KNOTS - 1];
    int i = 0;
    while (knots[i] < x) ++i;  // 0 < i < KNOTS
    f64 slope = __ddiv_rn(__dsub_rn(x, knots[i - 1]), __dsub_rn(knots[i], knots[i - 1]));
    return __dadd_rn(values[i - 1], __dmul_rn(slope, __dsub_rn(values[i], values[i - 1])));
}

__device__ __forceinline__ i64 exponent_of(f64 x) {
    return ((__double_as_longlong(x) >> 52) & 2047) - 1022;  // x is normal: from 2^(e-1) on
}

// Estimates the scale from the moments of a tensor, and defines the grid of scales. One thread.
extern "C" __global__ void __launch_bounds__(WARP)
    start_search(i32 rule, const f64* __restrict__ tables, const f64* __restrict__ middles, i32 steps,
                 f64 first, f64 last, const f64* __restrict__ above,
                 const f64* __restrict__ totals, const f64* __restrict__ lows,
                 const f64* __restrict__ highs, u8* memory) {
    Search* search = (Search*)memory;
    if (threadIdx.x) return;
    search->tried = search->measured = search->scales = 0;
    if (!search->any) return;
    f64 size = (f64)search->size, sigma = __dsqrt_rn(__ddiv_rn(search->energy, size));
    f64 beta = interpolated(__ddiv_rn(search->mean, sigma), tables + RATIOS, tables + BETAS);
    f64 log = interpolated(__ddiv_rn(-1.0, beta), tables + INVERSE, tables + ROW);
    f64 wanted = __dmul_rn(sigma, power_of(log, tables + ROOTS_AT));
    // The scale stays a normal number if then even the least level is far below the mean.
    bool fine = __dmul_rn(__dmul_rn(0x1p-126, first), 16.0) <= __dmul_rn(sigma, search->unit);
    search->least = fine ? 0x1p-126 : 0x1p-149;
    if (rule == CO3) {
        f64 p = __dadd_rn(-2.85, __dmul_rn(beta, 0.52));
        p = __dadd_rn(5.37, __dmul_rn(beta, p));
        p = __dadd_rn(-2.85, __dmul_rn(beta, p));
        p = __dadd_rn(0.46, __dmul_rn(beta, p));
        wanted = __ddiv_rn(wanted, __dmul_rn(2.0, p > 0.0009 ? p : 0.0009));
        search->method = KNOWN;
    } else {
        AllBins bins = {lows, highs, above, totals};
        Ladder ladder = {middles, steps, first, last};
        Sums before = sums_of(bins, search->squares, ladder, wanted);
        f64 after = sums_of(bins, search->squares, ladder, before.fitted).error;
        if (before.fitted > 0.0 && after < before.error) wanted = before.fitted;
        if (rule != HISTOGRAM && search->size >= MOMENTS) search->method = KNOWN;
    }
    search->wanted = wanted;
    if (search->method == KNOWN) return;
    f64 mean = __ddiv_rn(search->total, size);
    search->low = exponent_of(__ddiv_rn(mean, last)) - 1;
    i64 octaves = exponent_of(__ddiv_rn(search->largest, first)) - search->low + 1;
    search->scales = min(max(octaves * STEPS, (i64)0), MOST_SCALES);
}

__device__ __forceinline__ f64 scale_at(const Search* search, const f64* tables, i64 k) {
    return __dmul_rn(power_of_two(search->low + k / STEPS), tables[FRACTIONS + k % STEPS]);
}

// Measures the errors of all scales of the grid.
extern "C" __global__ void __launch_bounds__(128, 8)
    measure_grid(const f64* __restrict__ tables, const f64* __restrict__ middles, i32 steps,
                 const f64* __restrict__ above, const f64* __restrict__ totals,
                 const f64* __restrict__ lows, const f64* __restrict__ highs,
                 const u8* __restrict__ memory, f64* __restrict__ errors) {
    const Search* search = (const Search*)memory;
    AllBins bins = {lows, highs, above, totals};
    Ladder ladder = {middles, steps, 0.0, 0.0};
    for (i64 k = GCODEC_FIRST; k < search->scales; k += GCODEC_STEP)
        errors[k] = sums_of(bins, search->squares, ladder, scale_at(search, tables, k)).error;
}

struct Place {
    f64 error;
    i64 at;  // negative for no place
};

__device__ __forceinline__ bool comes_before(const Place& a, const Place& b) {
    if (a.at < 0 || b.at < 0) return a.at >= 0;
    return a.error < b.error || (a.error == b.error && a.at < b.at);
}

// The first place of all threads of a block. errors, places: shared, an element for each warp.
__device__ Place first_of_block(Place own, f64* errors, i64* places) {
    for (int step = 16; step; step /= 2) {
        Place other = {__shfl_xor_sync(EVERY_LANE, own.error, step),
                       __shfl_xor_sync(EVERY_LANE, own.at, step)};
        if (comes_before(other, own)) own = other;
    }
    if (threadIdx.x % WARP == 0) {
        errors[threadIdx.x / WARP] = own.error;
        places[threadIdx.x / WARP] = own.at;
    }
    __syncthreads();
    for (int warp = 0; warp < (int)blockDim.x / WARP; ++warp) {
        Place other = {errors[warp], places[warp]};
        if (comes_before(other, own)) own = other;
    }
    __syncthreads();
    return own;
}

// The place of the largest scale whose error is within the tolerance, and at most that of the first.
__device__ int largest_within(const f64* scales, const f64* errors, int count) {
    f64 least = errors[0];
    for (int k = 1; k < count; ++k)
        if (errors[k] < least) least = errors[k];
    f64 limit = __dadd_rn(least, __dmul_rn(TOLERANCE, fabs(least)));
    f64 bound = errors[0] > least ? errors[0] : least;
    limit = bound < limit ? bound : limit;
    int best = 0;
    f64 largest = errors[0] <= limit ? scales[0] : 0.0;
    for (int k = 1; k < count; ++k) {
        f64 scale = errors[k] <= limit ? scales[k] : 0.0;
        if (scale > largest) best = k, largest = scale;
    }
    return best;
}

static const int MOST_TRIED = 80;

// Chooses the scales to measure, and writes their errors by the bins. tried, results: MOST_TRIED.
extern "C" __global__ void __launch_bounds__(256, 4)
    choose_tried(const f64* __restrict__ tables, const f64* __restrict__ middles, i32 steps, f64 most,
                 const f64* __restrict__ above, const f64* __restrict__ totals,
                 const f64* __restrict__ lows, const f64* __restrict__ highs,
                 const f64* __restrict__ errors, u8* memory, f64* tried, f64* results) {
    __shared__ f64 warp_errors[256 / WARP];
    __shared__ i64 warp_places[256 / WARP];
    __shared__ f64 scales[MOST_TRIED], costs[MOST_TRIED];
    __shared__ i64 chosen[LOCAL + LARGE], ends[LARGE];
    Search* search = (Search*)memory;
    i64 count = search->scales;
    if (search->method == KNOWN || !search->any || !count) return;  // the same for all threads
    int candidates = 0;
    Place before = {0.0, -1}, least = {0.0, -1};
    for (int round = 0; round < LOCAL; ++round) {
        Place own = {0.0, -1}, any = {0.0, -1};
        for (i64 k = threadIdx.x; k < count; k += blockDim.x) {
            Place place = {errors[k], k};
            if (comes_before(place, any)) any = place;
            bool lowest = (k == 0 || place.error <= errors[k - 1]) &&
                          (k == count - 1 || place.error < errors[k + 1]);
            if (!lowest || (round && !comes_before(before, place))) continue;
            if (comes_before(place, own)) own = place;
        }
        if (round == 0) least = first_of_block(any, warp_errors, warp_places);
        before = first_of_block(own, warp_errors, warp_places);
        if (before.at < 0) break;  // the same for all threads
        if (threadIdx.x == 0) chosen[candidates] = before.at;
        ++candidates;
    }
    f64 limit = __dmul_rn(1.0 + TOLERANCE, least.error);
    i64 above_it = count;
    int ended = 0;
    for (; ended < LARGE; ++ended) {  // from the last on
        Place own = {0.0, -1};
        for (i64 k = threadIdx.x; k < above_it; k += blockDim.x) {
            Place place = {-(f64)k, k};
            if (errors[k] <= limit && comes_before(place, own)) own = place;
        }
        Place last = first_of_block(own, warp_errors, warp_places);
        if (last.at < 0) break;
        above_it = last.at;
        if (threadIdx.x == 0) ends[ended] = last.at;
    }
    if (threadIdx.x == 0)
        for (int k = 0; k < ended; ++k) chosen[candidates + k] = ends[ended - 1 - k];
    candidates += ended;
    __syncthreads();
    AllBins bins = {lows, highs, above, totals};
    Ladder ladder = {middles, steps, 0.0, 0.0};
    if ((int)threadIdx.x < candidates) {
        f64 scale = scale_at(search, tables, chosen[threadIdx.x]);
        for (int round = 0;; ++round) {
            scales[1 + round * candidates + threadIdx.x] = rounded(scale, search, most);
            if (round == ROUNDS) break;
            scale = sums_of(bins, search->squares, ladder, scale).fitted;
        }
    }
    if (threadIdx.x == 0) scales[0] = rounded(search->wanted, search, most);
    __syncthreads();
    int number = 1 + (1 + ROUNDS) * candidates, t = threadIdx.x;  // up to 49
    if (t < number) {
        costs[t] = sums_of(bins, search->squares, ladder, scales[t]).error;
        tried[t] = scales[t];
        results[t] = costs[t];
    }
    __syncthreads();
    if (search->method == MEASURED) {
        // The scales that seem best, and in any case the one that the bins select.
        i64 each = FEW / search->size;
        int kept = (int)min(max(each, (i64)1), (i64)number), rank = 0;
        if (t == 0) {
            tried[0] = scales[0];
            tried[1] = scales[largest_within(scales, costs, number)];
        }
        for (int k = 0; t < number && k < number; ++k)
            rank += costs[k] < costs[t] || (costs[k] == costs[t] && k < t);
        if (t < number && rank < kept) tried[2 + rank] = scales[t];
        number = 2 + kept;
    }
    if (t == 0) {
        search->measured = search->method == BINNED ? number : 0;
        search->tried = number;
    }
}

// Lists the largest elements, at most TOP; order_largest sorts them by position.
extern "C" __global__ void __launch_bounds__(256)
    list_largest(const u32* __restrict__ sample, i64 m, const u32* __restrict__ all, i64 n,
                 const u64* __restrict__ nonzero, const u8* __restrict__ memory, u64* out) {
    const Search* search = (const Search*)memory;
    if (search->method != LARGEST_APART || !search->tried) return;
    Picked values = picked(sample, m, all, n, nonzero);
    u32 edge = (u32)search->first << SHIFT;
    bool lifted = search->lifted;
    const u32* x = values.x;
    list(
        values.n, out, TOP, [=](i64 i) { return magnitude_of(x[i], lifted) >= edge; },
        [=](i64 i) { return (u64)magnitude_of(x[i], lifted); });
}

extern "C" __global__ void __launch_bounds__(256)
    order_largest(const u64* __restrict__ listed, u32* __restrict__ out) {
    i64 count = min((i64)listed[0], TOP);
    for (i64 k = GCODEC_FIRST; k < count; k += GCODEC_STEP) {
        i64 rank = 0;
        for (i64 j = 0; j < count; ++j) rank += listed[1 + 2 * j] < listed[1 + 2 * k];
        out[rank] = (u32)listed[2 + 2 * k];
    }
}

// Measures the candidates from `measured` on, a block for each. 256 threads.
extern "C" __global__ void __launch_bounds__(256, 4)
    measure_tried(const u32* __restrict__ sample, i64 m, const u32* __restrict__ all, i64 n,
                  const u64* __restrict__ nonzero, const u64* __restrict__ listed,
                  const u32* __restrict__ largest, const f64* __restrict__ middles, i32 steps, f64 last,
                  u32 mantissa, const f64* __restrict__ above, const f64* __restrict__ lower,
                  const u8* __restrict__ memory, const f64* __restrict__ tried, f64* errors) {
    __shared__ f64 lanes[LANES / 2];
    const Search* search = (const Search*)memory;
    i64 k = search->measured + blockIdx.x;
    if (k >= search->tried) return;
    bool apart = search->method == LARGEST_APART, lifted = search->lifted;
    Picked values = picked(sample, m, all, n, nonzero);
    const u32* x = apart ? largest : values.x;
    i64 size = apart ? min((i64)*listed, TOP) : values.n;
    u32 delta = narrowed(tried[k]), top = narrowed(last);
    f64 sum = 0.0;
    for (i64 i = threadIdx.x; i < size; i += LANES) {
        u32 magnitude = apart ? x[i] : magnitude_of(x[i], lifted);
        sum = __dadd_rn(sum, square_of(magnitude, delta, top, mantissa));
    }
    sum = add_lanes(sum, lanes);
    if (threadIdx.x) return;
    if (apart) {
        LowerBins bins = {above, lower, search->first};
        Ladder ladder = {middles, steps, 0.0, 0.0};
        sum = __dadd_rn(sums_of(bins, search->lower_squares, ladder, tried[k]).error, sum);
    }
    errors[k] = sum;
}

// If the largest elements are apart, scales near the best ones become candidates too.
extern "C" __global__ void __launch_bounds__(128)
    choose_nearby(const f64* __restrict__ tables, f64 most, u8* memory, f64* tried,
                  const f64* __restrict__ errors) {
    __shared__ f64 best[LOCAL / 2];
    Search* search = (Search*)memory;
    int number = (int)search->tried, t = threadIdx.x, rank = 0;
    bool apart = search->method == LARGEST_APART && number > 0;
    __syncthreads();
    if (t == 0) search->measured = number;
    if (!apart) return;
    for (int k = 0; t < number && k < number; ++k)
        rank += errors[k] < errors[t] || (errors[k] == errors[t] && k < t);
    if (t < number && rank < LOCAL / 2) best[rank] = tried[t];
    __syncthreads();
    int count = min(number, LOCAL / 2) * NEARBY;
    if (t < count)
        tried[number + t] = rounded(
            __dmul_rn(best[t / NEARBY], tables[NEARBY_AT + t % NEARBY]), search, most);
    if (t == 0) search->tried = number + count;
}

// Writes the bits of the float32 scale.
extern "C" __global__ void __launch_bounds__(WARP)
    end_search(f64 most, const u8* __restrict__ memory, const f64* __restrict__ tried,
               const f64* __restrict__ errors, u32* __restrict__ out) {
    const Search* search = (const Search*)memory;
    if (threadIdx.x) return;
    f64 wanted = search->wanted;
    if (search->any && search->tried)
        wanted = tried[largest_within(tried, errors, (int)search->tried)];
    *out = search->any ? narrowed(__dmul_rn(rounded(wanted, search, most), search->unit)) : 0;
}
