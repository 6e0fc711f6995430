// The search for the scale of a tensor of minifloats: what gennorm.py does with scale_errors.py, in
// the same order, with nothing left for the host to decide.
//
// Kernels follow one another, most of them of one block. What one of them decides, the others read
// in a `Search`; those that have nothing to do then end at once.
#include "kernels/bits/listed.cuh"
#include "kernels/numeric/log_histogram.cuh"
#include "kernels/quantize/minifloat_error.cuh"
#include "kernels/numeric/reduce.cuh"

static const i64 FINITE = INFINITY_BITS >> SHIFT;         // bins of numbers; behind are infinity and NaN
static const i64 UNIT_BIN = (u32)(127 - 64) << 23 >> SHIFT;  // the bin of 2^-64
static const i64 ENOUGH = 1 << 18;  // elements of a sample that are not 0, or all are looked at
static const i64 FEW = 1 << 18;     // elements that are all measured
static const i64 TOP = 1 << 12, SCARCE = 1 << 10, NEAR_TOP = 1 << 7;
static const i64 MOMENTS = 1 << 12;  // elements by which moments tell a distribution
static const int STEPS = 32, LOCAL = 8, LARGE = 4, ROUNDS = 3;
static const i64 MOST_SCALES = 1 << 12;  // of the grid: of 127 octaves
static const f64 TOLERANCE = 1e-3;
static const int HISTOGRAM = 0, CO3 = 2;  // rules

// Of the tables of gennorm_tables.txt, and powers of two, one behind the other.
static const int KNOTS = 65, ROOTS = 24, NEARBY = 6;
static const int RATIOS = 0, BETAS = KNOTS, INVERSE = 2 * KNOTS, ROW = 3 * KNOTS, ROOTS_AT = 4 * KNOTS,
                 FRACTIONS = ROOTS_AT + ROOTS, NEARBY_AT = FRACTIONS + STEPS;

enum Way { KNOWN, MEASURED, BINNED, LARGEST_APART };

struct Search {
    f64 unit;          // of what follows, but for `scale`
    f64 sigma, beta;   // of the distribution of these moments
    f64 largest;       // no magnitude is above
    f64 total, squares;     // of magnitudes, and of those in bins that are no `top`
    f64 rest_squares;
    f64 wanted, least;  // the scale that is best so far; of all that the wire may have
    i64 lifted;        // whether values are taken times 2^64
    i64 any;           // whether some are not 0
    i64 size;
    i64 first;         // bin of the largest elements, which are not in bins
    i64 low, scales;   // octave of the first scale of the grid, and how many there are
    i64 way, tried, measured;
};

// Either a sample, or all of a tensor of which too few are not 0.
struct Picked {
    const u32* x;
    i64 n;
    bool all;
};

__device__ __forceinline__ Picked picked(const u32* some, i64 m, const u32* all, i64 n,
                                         const u64* nonzero) {
    bool every = m < n && (i64)*nonzero < ENOUGH;
    Picked found = {every ? all : some, every ? n : m, every};
    return found;
}

extern "C" __global__ void __launch_bounds__(256)
    count_nonzero(const u32* __restrict__ x, i64 n, u64* nonzero) {
    // −0 counts
    u64 own = 0;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP) own += x[i] != 0;
    for (int step = 16; step; step /= 2) own += __shfl_xor_sync(EVERY_LANE, own, step);
    if (threadIdx.x % WARP == 0 && own) atomicAdd(nonzero, own);
}

// All of x + decay * kept, if the sample is not enough.
extern "C" __global__ void __launch_bounds__(256)
    correct_all(const u32* __restrict__ x, const u32* __restrict__ kept, u32 decay, i64 n,
                const u64* __restrict__ nonzero, u32* __restrict__ out) {
    if ((i64)*nonzero >= ENOUGH) return;
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP)
        out[i] = add_bits(x[i], multiply_bits(decay, kept[i]));
}

// In the next ones `some` are m elements of `all`, which are n. counts: 2 * BINS zeros, of values as
// they are and of lifted ones.

extern "C" __global__ void __launch_bounds__(256)
    count_picked(const u32* __restrict__ some, i64 m, const u32* __restrict__ all, i64 n,
                 const u64* __restrict__ nonzero, u64* __restrict__ counts) {
    Picked values = picked(some, m, all, n, nonzero);
    count_all(values.x, values.n, false, counts);
}

// Whether all magnitudes are below 2^-64: they are then lifted.
extern "C" __global__ void __launch_bounds__(256)
    choose_unit(const u64* __restrict__ counts, u8* __restrict__ memory) {
    Search* search = (Search*)memory;
    int found = 0;
    for (i64 k = UNIT_BIN + threadIdx.x; k < BINS; k += blockDim.x) found |= counts[k] != 0;
    found = __syncthreads_or(found);
    if (threadIdx.x) return;
    search->lifted = !found;
    search->unit = found ? 1.0 : 0x1p-64;
}

extern "C" __global__ void __launch_bounds__(256)
    count_lifted(const u32* __restrict__ some, i64 m, const u32* __restrict__ all, i64 n,
                 const u64* __restrict__ nonzero, const u8* __restrict__ memory,
                 u64* __restrict__ counts) {
    if (!((const Search*)memory)->lifted) return;
    Picked values = picked(some, m, all, n, nonzero);
    count_all(values.x, values.n, true, counts + BINS);
}

// Of a small sample, runs of neighbours that begin as `runs` says, the magnitudes that each bin has.
// runs: of `some`, and of `all`, `count` each; none where all elements are the sample. seen: 3 · BINS
// zeros, which get complements of the least, the largest, and how many there are.
extern "C" __global__ void __launch_bounds__(256)
    note_sample(const u32* __restrict__ some, i64 m, const u32* __restrict__ all, i64 n,
                const u64* __restrict__ nonzero, const u8* __restrict__ memory,
                const i64* __restrict__ runs, i64 count, i64 length, u32* __restrict__ seen) {
    Picked values = picked(some, m, all, n, nonzero);
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

// Adds up `count` terms from `first` on, one after the other, and writes each sum in its place if
// `kept` is there.
__device__ __forceinline__ f64 add_up(const f64* terms, i64 first, i64 count, f64* kept) {
    f64 sum = 0.0;
#pragma unroll 8
    for (i64 k = first; k < count; ++k) {
        sum = __dadd_rn(sum, terms[k]);
        if (kept) kept[k] = sum;
    }
    return sum;
}

// Tails of the bins, of which those that are of one magnitude are narrow: `above` has how many
// elements are in each and those behind it, `totals` their magnitudes, `rest` those of the bins
// below the largest elements; BINS + 1 each. lows, highs: BINS. ranks: BINS, of bins that are not
// empty, from the last on. terms: 6 · BINS.
extern "C" __global__ void __launch_bounds__(1024) add_bins(
    const u64* __restrict__ both, const u32* __restrict__ seen, u8* __restrict__ memory, f64* above,
    f64* totals, f64* rest, f64* lows, f64* highs, i64* ranks, f64* terms) {
    __shared__ i64 scratch[1024 / WARP];
    __shared__ i64 first_of[1], last_of[1];
    Search* search = (Search*)memory;
    const u64* counts = both + (search->lifted ? BINS : 0);
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
            f64 many = (f64)count, *to = terms + rank.before;
            to[0] = __dmul_rn(many, __ddiv_rn(__dadd_rn(low, high), 2.0));
            to[BINS] = __dmul_rn(many, mean_square(low, high));
            to[2 * BINS] = __dmul_rn(many, __ddiv_rn(__dadd_rn(lows[k], highs[k]), 2.0));
            to[3 * BINS] = __dmul_rn(many, mean_square(lows[k], highs[k]));
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
        above[BINS] = totals[BINS] = rest[BINS] = 0.0;
    }
    __syncthreads();
    atomicMin((u64*)first_of, (u64)first);
    atomicMax((u64*)last_of, (u64)last);
    __syncthreads();
    first = first_of[0], last = last_of[0];
    i64 behind = first < BINS ? ranks[first] : filled;
    bool apart = total > FEW && last > NEAR_TOP && above[last - NEAR_TOP] <= (f64)SCARCE;
    // Sums one after the other, each by a thread of a warp of its own.
    if (threadIdx.x == 0) {
        f64 sum = add_up(terms, 0, filled, nullptr);
        search->sigma = __ddiv_rn(sum, (f64)total);  // until there is one
        search->any = filled > 0;
        search->size = total;
        search->first = first;
        search->largest = edge_of(last + 1);
        search->way = apart ? LARGEST_APART : total > FEW ? BINNED : MEASURED;
    } else if (threadIdx.x == WARP) {
        search->beta = add_up(terms + BINS, 0, filled, nullptr);
    } else if (threadIdx.x == 2 * WARP) {
        search->total = add_up(terms + 2 * BINS, 0, filled, terms + 2 * BINS);
    } else if (threadIdx.x == 3 * WARP) {
        search->squares = add_up(terms + 3 * BINS, 0, filled, nullptr);
    } else if (threadIdx.x == 4 * WARP && apart) {
        add_up(terms, behind, filled, terms + 4 * BINS);
    } else if (threadIdx.x == 5 * WARP && apart) {
        search->rest_squares = add_up(terms + BINS, behind, filled, nullptr);
    }
    __syncthreads();
    for (i64 k = threadIdx.x; k < BINS; k += blockDim.x) {
        i64 at = ranks[k];
        totals[k] = at ? terms[2 * BINS + at - 1] : 0.0;
        rest[k] = apart && at > behind ? terms[4 * BINS + at - 1] : 0.0;
    }
}

// Levels of a format, the middles of each two and what these rise by; see scale_errors.py.
struct Ladder {
    const f64* middles;  // (count,), then as many rises, and as many of squares
    i32 count;
    f64 first, last;  // levels that are not 0
};

// Bins of all elements.
struct Every {
    const f64 *lows, *highs, *above, *totals;
    __device__ __forceinline__ f64 low(i64 k) const { return lows[k]; }
    __device__ __forceinline__ f64 high(i64 k) const { return highs[k]; }
    __device__ __forceinline__ f64 count(i64 k) const { return above[k]; }
    __device__ __forceinline__ f64 total(i64 k) const { return totals[k]; }
};

// Bins below the first of those that are not looked at as such.
struct Below {
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

// The squared error of a scale, and which one would be best for the levels it gives.
template <class Bins>
__device__ __forceinline__ Sums sums_of(const Bins& bins, f64 squares, const Ladder& ladder, f64 scale) {
    f64 product = 0.0, norm = 0.0;
#pragma unroll 1
    for (i32 j = 0; j < ladder.count; ++j) {
        f64 threshold = __dmul_rn(scale, ladder.middles[j]);
        i64 place = (narrowed(threshold) & MAGNITUDE) >> SHIFT;  // below BINS
        f64 here = bins.count(place), behind = bins.count(place + 1);
        if (here == 0.0) break;
        f64 low = bins.low(place), high = bins.high(place), some = __dsub_rn(here, behind);
        if (threshold >= high) {
            some = 0.0;
        } else if (threshold > low) {
            f64 share = __ddiv_rn(__dsub_rn(high, threshold), __dsub_rn(high, low));
            some = __dmul_rn(some, share);
            low = threshold;
        }
        f64 inside = __dmul_rn(some, __ddiv_rn(__dadd_rn(high, low), 2.0));
        const f64* rises = ladder.middles + ladder.count + j;
        product = __dadd_rn(product, __dmul_rn(rises[0], __dadd_rn(bins.total(place + 1), inside)));
        norm = __dadd_rn(norm, __dmul_rn(rises[ladder.count], __dadd_rn(behind, some)));
    }
    f64 twice = __dsub_rn(__dmul_rn(2.0, product), __dmul_rn(scale, norm));
    f64 error = __dsub_rn(squares, __dmul_rn(scale, twice));
    Sums found = {error, __ddiv_rn(product, norm > 0x1p-1022 ? norm : 0x1p-1022)};
    return found;
}

// A scale as the wire may have it, in units.
__device__ __forceinline__ f64 rounded(f64 scale, const Search* search, f64 most) {
    f64 inside = __dmul_rn(scale, search->unit);
    inside = inside > search->least ? inside : search->least;
    inside = inside < most ? inside : most;
    return __ddiv_rn(widened(narrowed(inside)), search->unit);
}

// 2^exponent, of a normal number.
__device__ __forceinline__ f64 power_of_two(i64 exponent) {
    return __longlong_as_double((exponent + 1023) << 52);
}

// 2^log, by roots of 2.
__device__ f64 power_of(f64 log, const f64* roots) {
    f64 whole = floor(log), rest = __dsub_rn(log, whole), power = 1.0;
    for (int k = 0; k < ROOTS; ++k) {
        rest = __dmul_rn(2.0, rest);
        if (rest >= 1.0) {
            rest = __dsub_rn(rest, 1.0);
            power = __dmul_rn(power, roots[k]);
        }
    }
    return __dmul_rn(power, power_of_two((i64)whole));
}

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

// The scale by the moments of a tensor, and which ones are to be tried. One thread.
extern "C" __global__ void __launch_bounds__(WARP)
    start_search(i32 rule, const f64* __restrict__ tables, const f64* __restrict__ middles, i32 steps,
                 f64 first, f64 last, const f64* __restrict__ above,
                 const f64* __restrict__ totals, const f64* __restrict__ lows,
                 const f64* __restrict__ highs, u8* memory) {
    Search* search = (Search*)memory;
    if (threadIdx.x) return;
    search->tried = search->measured = search->scales = 0;
    if (!search->any) return;
    f64 size = (f64)search->size, sigma = __dsqrt_rn(__ddiv_rn(search->beta, size));
    f64 beta = interpolated(__ddiv_rn(search->sigma, sigma), tables + RATIOS, tables + BETAS);
    f64 log = interpolated(__ddiv_rn(-1.0, beta), tables + INVERSE, tables + ROW);
    f64 wanted = __dmul_rn(sigma, power_of(log, tables + ROOTS_AT));
    // Whether the scale stays normal: if not even the least level is far below the mean.
    bool fine = __dmul_rn(__dmul_rn(0x1p-126, first), 16.0) <= __dmul_rn(sigma, search->unit);
    search->least = fine ? 0x1p-126 : 0x1p-149;
    if (rule == CO3) {
        f64 p = __dadd_rn(-2.85, __dmul_rn(beta, 0.52));
        p = __dadd_rn(5.37, __dmul_rn(beta, p));
        p = __dadd_rn(-2.85, __dmul_rn(beta, p));
        p = __dadd_rn(0.46, __dmul_rn(beta, p));
        wanted = __ddiv_rn(wanted, __dmul_rn(2.0, p > 0.0009 ? p : 0.0009));
        search->way = KNOWN;
    } else {
        Every bins = {lows, highs, above, totals};
        Ladder ladder = {middles, steps, first, last};
        Sums before = sums_of(bins, search->squares, ladder, wanted);
        f64 after = sums_of(bins, search->squares, ladder, before.fitted).error;
        if (before.fitted > 0.0 && after < before.error) wanted = before.fitted;
        if (rule != HISTOGRAM && search->size >= MOMENTS) search->way = KNOWN;
    }
    search->wanted = wanted;
    if (search->way == KNOWN) return;
    f64 mean = __ddiv_rn(search->total, size);
    search->low = exponent_of(__ddiv_rn(mean, last)) - 1;
    i64 octaves = exponent_of(__ddiv_rn(search->largest, first)) - search->low + 1;
    search->scales = min(max(octaves * STEPS, (i64)0), MOST_SCALES);
}

__device__ __forceinline__ f64 scale_at(const Search* search, const f64* tables, i64 k) {
    return __dmul_rn(power_of_two(search->low + k / STEPS), tables[FRACTIONS + k % STEPS]);
}

// Errors of all scales of the grid.
extern "C" __global__ void __launch_bounds__(128, 8)
    measure_grid(const f64* __restrict__ tables, const f64* __restrict__ middles, i32 steps,
                 const f64* __restrict__ above, const f64* __restrict__ totals,
                 const f64* __restrict__ lows, const f64* __restrict__ highs,
                 const u8* __restrict__ memory, f64* __restrict__ errors) {
    const Search* search = (const Search*)memory;
    Every bins = {lows, highs, above, totals};
    Ladder ladder = {middles, steps, 0.0, 0.0};
    for (i64 k = GCODEC_FIRST; k < search->scales; k += GCODEC_STEP)
        errors[k] = sums_of(bins, search->squares, ladder, scale_at(search, tables, k)).error;
}

struct Place {
    f64 error;
    i64 at;  // below 0: none
};

__device__ __forceinline__ bool comes_before(const Place& a, const Place& b) {
    if (a.at < 0 || b.at < 0) return a.at >= 0;
    return a.error < b.error || (a.error == b.error && a.at < b.at);
}

// The first of what all threads of a block have. `scratch` is shared, and has one of each warp.
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

// Place of the largest scale within the tolerance, and not above the error of the first.
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

// Which scales are to be measured, and for elements in bins their errors. tried, found: MOST_TRIED.
extern "C" __global__ void __launch_bounds__(256, 4)
    choose_tried(const f64* __restrict__ tables, const f64* __restrict__ middles, i32 steps, f64 most,
                 const f64* __restrict__ above, const f64* __restrict__ totals,
                 const f64* __restrict__ lows, const f64* __restrict__ highs,
                 const f64* __restrict__ errors, u8* memory, f64* tried, f64* found) {
    __shared__ f64 warp_errors[256 / WARP];
    __shared__ i64 warp_places[256 / WARP];
    __shared__ f64 scales[MOST_TRIED], costs[MOST_TRIED];
    __shared__ i64 chosen[LOCAL + LARGE], ends[LARGE];
    Search* search = (Search*)memory;
    i64 count = search->scales;
    if (search->way == KNOWN || !search->any || !count) return;  // the same for all threads
    int candidates = 0;
    Place before = {0.0, -1}, least = {0.0, -1};
    for (int round = 0; round < LOCAL; ++round) {
        Place own = {0.0, -1}, any = {0.0, -1};
        for (i64 k = threadIdx.x; k < count; k += blockDim.x) {
            Place here = {errors[k], k};
            if (comes_before(here, any)) any = here;
            bool lowest = (k == 0 || here.error <= errors[k - 1]) &&
                          (k == count - 1 || here.error < errors[k + 1]);
            if (!lowest || (round && !comes_before(before, here))) continue;
            if (comes_before(here, own)) own = here;
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
            Place here = {-(f64)k, k};
            if (errors[k] <= limit && comes_before(here, own)) own = here;
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
    Every bins = {lows, highs, above, totals};
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
        found[t] = costs[t];
    }
    __syncthreads();
    if (search->way == MEASURED) {
        // Those that seem best, at least with the one that would be taken.
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
        search->measured = search->way == BINNED ? number : 0;
        search->tried = number;
    }
}

// The largest elements as they are: as `list` notes them, of room for TOP, and then in order.
extern "C" __global__ void __launch_bounds__(256)
    list_largest(const u32* __restrict__ some, i64 m, const u32* __restrict__ all, i64 n,
                 const u64* __restrict__ nonzero, const u8* __restrict__ memory, u64* out) {
    const Search* search = (const Search*)memory;
    if (search->way != LARGEST_APART || !search->tried) return;
    Picked values = picked(some, m, all, n, nonzero);
    u32 edge = (u32)search->first << SHIFT;
    bool lifted = search->lifted;
    const u32* x = values.x;
    list(
        values.n, out, TOP, [=](i64 i) { return magnitude_of(x[i], lifted) >= edge; },
        [=](i64 i) { return (u64)magnitude_of(x[i], lifted); });
}

extern "C" __global__ void __launch_bounds__(256)
    order_largest(const u64* __restrict__ found, u32* __restrict__ out) {
    i64 count = min((i64)found[0], TOP);
    for (i64 k = GCODEC_FIRST; k < count; k += GCODEC_STEP) {
        i64 rank = 0;
        for (i64 j = 0; j < count; ++j) rank += found[1 + 2 * j] < found[1 + 2 * k];
        out[rank] = (u32)found[2 + 2 * k];
    }
}

// Errors of scales that are tried, a block for each, from those on that have some. 256 threads.
extern "C" __global__ void __launch_bounds__(256, 4)
    measure_tried(const u32* __restrict__ some, i64 m, const u32* __restrict__ all, i64 n,
                  const u64* __restrict__ nonzero, const u64* __restrict__ listed,
                  const u32* __restrict__ largest, const f64* __restrict__ middles, i32 steps, f64 last,
                  u32 mantissa, const f64* __restrict__ above, const f64* __restrict__ rest,
                  const u8* __restrict__ memory, const f64* __restrict__ tried, f64* errors) {
    __shared__ f64 lanes[LANES / 2];
    const Search* search = (const Search*)memory;
    i64 k = search->measured + blockIdx.x;
    if (k >= search->tried) return;
    bool apart = search->way == LARGEST_APART, lifted = search->lifted;
    Picked values = picked(some, m, all, n, nonzero);
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
        Below bins = {above, rest, search->first};
        Ladder ladder = {middles, steps, 0.0, 0.0};
        sum = __dadd_rn(sums_of(bins, search->rest_squares, ladder, tried[k]).error, sum);
    }
    errors[k] = sum;
}

// Where the largest elements are apart, scales near the best ones are tried too.
extern "C" __global__ void __launch_bounds__(128)
    choose_nearby(const f64* __restrict__ tables, f64 most, u8* memory, f64* tried,
                  const f64* __restrict__ errors) {
    __shared__ f64 best[LOCAL / 2];
    Search* search = (Search*)memory;
    int number = (int)search->tried, t = threadIdx.x, rank = 0;
    bool apart = search->way == LARGEST_APART && number > 0;
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

// The scale: the bits of a float32.
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
