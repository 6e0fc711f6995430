// rANS frequencies for counts of bytes: the integers of entropy/rans.py. A warp computes those of one
// total; a lane has eight consecutive symbols, so that symbols are in the order of lanes.
#include "kernels/numeric/scan.cuh"

static const int OWN = 8;           // symbols of a lane
static const int SYMBOLS = WARP * OWN;
static const int TOTALS = 4;        // their log2 begin with 12
static const int LEAST_LOG2 = 12;
static const int POINT = 28;        // fractional bits of logarithms
static const int COUNT_NBITS = 34;        // bits of counts that gains and losses use
static const u64 UNUSED = ~0ull;    // a loss that is never the least
static const u64 NONE = UNUSED >> 1;
static const i64 NO_SIZE = NONE;

__device__ __forceinline__ u64 sum_of(u64 x) {
    for (int step = WARP / 2; step; step /= 2) x += __shfl_xor_sync(EVERY_LANE, x, step);
    return x;
}

// Returns the largest value; `place` becomes the first place that has it. Places rise with lanes.
__device__ __forceinline__ u64 largest_of(u64 value, int& place) {
    for (int step = WARP / 2; step; step /= 2) {
        u64 other = __shfl_xor_sync(EVERY_LANE, value, step);
        int other_place = __shfl_xor_sync(EVERY_LANE, place, step);
        bool better = other > value || (other == value && other_place < place);
        if (better) value = other, place = other_place;
    }
    return value;
}

// The parts of arrays in shared memory that belong to a lane.
struct Shares {
    u64* counts;
    u32* frequencies;  // 0 for symbols that do not occur

    // Sets each frequency to about the share of its count in the total, but to at least 1.
    __device__ __forceinline__ void share(u64 total, u64 count) {
        u32 free = 0;
        for (int k = 0; k < OWN; ++k)
            if (counts[k]) frequencies[k] = 1, free |= 1u << k;
        for (;;) {
            u32 low = 0;
            u64 taken = 0;
            for (int k = 0; k < OWN; ++k)
                if (free >> k & 1 && counts[k] * total < count) low |= 1u << k, taken += counts[k];
            u64 removed = sum_of((u64)__popc(low));
            if (!removed) break;
            total -= removed, count -= sum_of(taken), free &= ~low;
        }
        for (int k = 0; k < OWN; ++k)
            if (free >> k & 1) frequencies[k] = (u32)((2 * counts[k] * total + count) / (2 * count));
    }
};

// Whether the 128 bits high:low are at least a product.
__device__ __forceinline__ bool holds(u64 high, u64 low, u64 a, u64 b) {
    u64 upper = __umul64hi(a, b), lower = a * b;
    return high > upper || (high == upper && low >= lower);
}

// See estimated_nbits in entropy/rans.py. Counts add up to less than 2^46.
__device__ __forceinline__ i64 estimated_nbits(const Shares& model, u64 n, i32 log2, const u32* logs) {
    u64 upper = 0, lower = 0, high = 0, low = 0;  // costs, and the sum of c·(n − c)
#pragma unroll 1
    for (int k = 0; k < OWN; ++k) {
        u64 count = model.counts[k], cost = ((u64)log2 << POINT) - logs[model.frequencies[k]];
        upper += (count >> 16) * cost, lower += (count & 0xFFFF) * cost;
        u64 term = count * (n - count);
        low += term, high += __umul64hi(count, n - count) + (low < term);
    }
    for (int step = WARP / 2; step; step /= 2) {
        u64 term = __shfl_xor_sync(EVERY_LANE, low, step);
        high += __shfl_xor_sync(EVERY_LANE, high, step);
        low += term, high += low < term;
    }
    upper = sum_of(upper), lower = sum_of(lower);
    u64 nbits = (upper >> 12) + ((((upper & 0xFFF) << 16) + lower) >> POINT);
    u64 unit = (n ? n : 1) * 768 << 2 * (LEAST_LOG2 + TOTALS - 1 - log2), times = 0;
    for (int bit = 40; bit >= 0; --bit)  // a quotient, which is below n
        if (holds(high, low, times | 1ull << bit, unit)) times |= 1ull << bit;
    nbits += times;
    u64 heads = 1024 * ((n + (1 << 18) - 1) >> 18), words = nbits > heads / 4 ? nbits - heads / 4 : 0;
    return (i64)(heads + 16 * ((words + 15) / 16));
}

// Bits of frequencies in a table, without the fields of their lengths.
__device__ __forceinline__ i64 table_nbits(const Shares& model) {
    u64 nbits = 0;
    for (int k = 0; k < OWN; ++k)
        if (model.frequencies[k]) nbits += 31 - __clz((int)model.frequencies[k]);
    return (i64)sum_of(nbits);
}

// `models` receives 256 frequencies for each of four totals, whose log2 begins with 12, and `sizes` the
// bits of table and string. `logs` holds log2 of 0 to 2^15 in units of 2^-28.
extern "C" __global__ void __launch_bounds__(WARP)
make_frequencies(const u64* counts, const u32* logs, i64* models, i64* sizes) {
    __shared__ u64 all_counts[SYMBOLS], all_losses[SYMBOLS];
    __shared__ u32 frequencies[SYMBOLS];
    int lane = threadIdx.x, log2 = LEAST_LOG2 + blockIdx.x;
    Shares own = {all_counts + lane * OWN, frequencies + lane * OWN};
    u64* losses = all_losses + lane * OWN;
    u64 used = 0, n = 0;
    for (int k = 0; k < OWN; ++k) {
        own.counts[k] = counts[lane * OWN + k];
        own.frequencies[k] = 0;
        used += own.counts[k] > 0, n += own.counts[k];
    }
    used = sum_of(used), n = sum_of(n);
    bool possible = used > (log2 == LEAST_LOG2 + TOTALS - 1);
    if (possible) {
        own.share(1ull << log2, n);
        u64 sum = 0;
        for (int k = 0; k < OWN; ++k) sum += own.frequencies[k];
        i64 spare = (1ll << log2) - (i64)sum_of(sum);
        int length = 64 - __clzll((i64)n), shift = length > COUNT_NBITS ? length - COUNT_NBITS : 0;
        for (;;) {
            // Gains are stored plus 1; 0 means that no symbol occurs.
            u64 gain = 0, loss = UNUSED;
            int more = lane * OWN, less = lane * OWN;
#pragma unroll 1
            for (int k = 0; k < OWN; ++k) {
                losses[k] = UNUSED;
                if (!own.counts[k]) continue;
                u64 count = own.counts[k] >> shift;
                u32 f = own.frequencies[k], log = logs[f];  // f is from 1 to 2^15 − 1
                u64 own_gain = 1 + count * (logs[f + 1] - log);
                losses[k] = f > 1 ? count * (log - logs[f - 1]) : NONE;
                if (own_gain > gain) gain = own_gain, more = lane * OWN + k;
            }
            gain = largest_of(gain, more);
#pragma unroll 1
            for (int k = 0; k < OWN; ++k) {
                u64 lost = lane * OWN + k == more ? NONE : losses[k];  // it gains already
                if (lost < loss) loss = lost, less = lane * OWN + k;
            }
            loss = ~largest_of(~loss, less);
            if (spare == 0 && gain - 1 <= loss) break;
            i64 step = (spare >= 0) - (spare <= 0);
            if (spare >= 0 && more / OWN == lane) frequencies[more] += 1;
            if (spare <= 0 && less / OWN == lane) frequencies[less] -= 1;
            spare -= step;
        }
    }
    i64 nbits = estimated_nbits(own, n, log2, logs) + table_nbits(own) + 4 * (1 + SYMBOLS);
    for (int k = 0; k < OWN; ++k)
        models[(i64)blockIdx.x * SYMBOLS + lane * OWN + k] = own.frequencies[k];
    if (lane == 0) sizes[blockIdx.x] = possible ? nbits : NO_SIZE;
}

// `sizes` receives the bits of a string by each model; if `sent` is not 0, plus `sent` and the bits of
// the frequencies. A warp for each model.
extern "C" __global__ void __launch_bounds__(WARP) size_frequencies(
    const u64* counts, const u32* logs, const i64* models, const i64* log2_total, i64 sent, i64* sizes
) {
    __shared__ u64 all_counts[SYMBOLS];
    __shared__ u32 frequencies[SYMBOLS];
    int lane = threadIdx.x;
    Shares own = {all_counts + lane * OWN, frequencies + lane * OWN};
    u64 n = 0;
    for (int k = 0; k < OWN; ++k) {
        n += own.counts[k] = counts[lane * OWN + k];
        own.frequencies[k] = (u32)models[(i64)blockIdx.x * SYMBOLS + lane * OWN + k];
    }
    i64 nbits = estimated_nbits(own, sum_of(n), (i32)*log2_total, logs);
    if (sent) nbits += sent + table_nbits(own);
    if (lane == 0) sizes[blockIdx.x] = nbits;
}

// Chooses a model by the sizes of strings. Totals rise from model to model; the first model is chosen
// that is at most a thousandth longer than the best, and a longer model ends the search.
extern "C" __global__ void __launch_bounds__(SYMBOLS)
choose_frequencies(const i64* models, const i64* sizes, i64* frequencies, i64* log2_total) {
    i64 least = sizes[0];
    int tried = 1, chosen = 0;
    while (tried < TOTALS && sizes[tried] <= least) least = sizes[tried++];
    i64 worth = least == NO_SIZE ? least : (i64)((u64)least * 1025 >> 10);
    while (sizes[chosen] > worth) chosen += 1;  // ends at the best at the latest
    frequencies[threadIdx.x] = models[chosen * SYMBOLS + threadIdx.x];
    if (threadIdx.x == 0) *log2_total = LEAST_LOG2 + chosen;
}
