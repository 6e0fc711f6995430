// The plan of a context-coded string: matrix, scales and table. The host decides nothing; on the
// CPU, `gcodec.entropy.context` does the same.
#include "kernels/numeric/scan.cuh"

static const int SYMBOLS = 256, CLASSES = 64, COUNTS = CLASSES * SYMBOLS;
static const int MOST_SCALE = 127, ESCAPE = 254, MOST = 126;
static const int LOG2_TOTAL = 12, TOTAL = 1 << LOG2_TOTAL, POINT = 28;
static const i64 OUTLIER = 20;  // bits, about, of an entry in the list of outliers
static const i64 WORTH = 2000, BITS_PER_STATE = 1 << 12;
static const i64 SENT = 255;
static const i64 MISSED = 64;  // a sample may miss classes of one of 64 bits
static const int NEAR = 2;     // classes whose symbols stand for each other
static const int LOG2_BLOCK = 18, LOG2_STATES = 16;

// A candidate matrix; see `_Cut` in context_plan_cuda.py. All numbers are i64, in the same order.
struct Cut {
    i64 across;   // number of column scales: the width, or 0
    i64 width;    // elements of a row
    i64 n;        // number of symbols
    i64 group;    // adjacent columns that share a scale, or 0
    i64 quantum;  // unit of the scales
    i64 row_sums, column_sums, rows, columns;  // where its sums and its scales begin
    __device__ __forceinline__ i64 height() const { return (n + width - 1) / width; }
};

static const u64 FRACTION = (1ull << 52) - 1;

// The scale of a positive mean; see scale_logs.py.
__device__ __forceinline__ u8 scale_of(f64 mean, i64 one, i64 quantum) {
    // 2^(1/8), 2^(3/8), 2^(5/8), 2^(7/8): the mantissas at which the nearest quarter octave changes.
    const f64 turns[4] = {1.0905077326652577, 1.2968395546510096, 1.5422108254079407,
                          1.8340080864093424};
    u64 bits = (u64)__double_as_longlong(mean), fraction = bits & FRACTION;
    i64 scale = one + 4 * ((i64)(bits >> 52) - 1023);
    for (int k = 0; k < 4; ++k) scale += fraction >= ((u64)__double_as_longlong(turns[k]) & FRACTION);
    scale = (scale + quantum / 2) & -quantum;
    return (u8)min(max(scale, quantum), MOST_SCALE & -quantum);
}

// The scales of each cut, or of the chosen one; a block for a cut.
extern "C" __global__ void __launch_bounds__(256)
    find_scales(const i64* __restrict__ cuts, const i64* __restrict__ which, bool chosen,
                const u64* __restrict__ sums, i64 row_one, i64 column_one, u8* __restrict__ scales) {
    __shared__ i64 scratch[256 / WARP];
    Cut cut = ((const Cut*)cuts)[chosen ? *which : blockIdx.x];
    const u64 *rows = sums + cut.row_sums, *columns = sums + cut.column_sums;
    i64 height = cut.height(), last = cut.n - (height - 1) * cut.width, total = 0;
    for (i64 i = threadIdx.x; i < height; i += blockDim.x) {
        i64 sum = (i64)rows[i], elements = i < height - 1 ? cut.width : last;
        total += sum;
        f64 mean = __ddiv_rn((f64)sum, (f64)elements);
        scales[cut.rows + i] = sum ? scale_of(mean, row_one, cut.quantum) : 0;
    }
    total = scan_block<Sum>(total, scratch).total;
    if (!cut.group) return;
    f64 inverse = __ddiv_rn((f64)cut.n, (f64)max(total, (i64)1));
    for (i64 first = threadIdx.x * cut.group; first < cut.width; first += blockDim.x * cut.group) {
        i64 stop = min(first + cut.group, cut.width), sum = 0, count = (stop - first) * height;
        for (i64 j = first; j < stop; ++j) {
            sum += (i64)columns[j];
            count -= j >= last;
        }
        f64 mean = __ddiv_rn(__dmul_rn((f64)sum, inverse), (f64)count);
        u8 scale = sum ? scale_of(mean, column_one, cut.quantum) : 0;
        for (i64 j = first; j < stop; ++j) scales[cut.columns + j] = scale;
    }
}

// The bits that symbols take, given their counts: those of counts blockIdx.y with table blockIdx.x.
extern "C" __global__ void __launch_bounds__(256)
    price_counts(const u64* __restrict__ counts, const i64* __restrict__ costs, i64* __restrict__ nbits) {
    __shared__ i64 scratch[256 / WARP];
    const u64* own = counts + (i64)blockIdx.y * COUNTS;
    i64 high = 0, low = 0;  // in halves, as the products would exceed 64 bits
    for (i64 k = threadIdx.x; k < COUNTS; k += blockDim.x) {
        u64 count = own[k];
        if (!count) continue;
        i64 cost = costs[k * gridDim.x + blockIdx.x];
        high += cost * (i64)(count >> 16);
        low += cost * (i64)(count & 0xFFFF);
    }
    high = scan_block<Sum>(high, scratch).total;
    low = scan_block<Sum>(low, scratch).total;
    if (threadIdx.x == 0) nbits[(i64)blockIdx.y * gridDim.x + blockIdx.x] = (high + (low >> 16)) >> (POINT - 16);
}

static const int ROOM = 2 * (MOST_SCALE + 2);  // coins and packages of a level

// The bits of Huffman words, by package-merge; see scale_lists.py.
__device__ __noinline__ i64 huffman_nbits(const i64* counts, int most, i64* coins, i64* low, i64* high) {
    int n = 0;
#pragma unroll 1
    for (int symbol = 0; symbol <= most; ++symbol) {
        if (!counts[symbol]) continue;
        int place = n++;
#pragma unroll 1
        for (; place > 0 && coins[place - 1] > counts[symbol]; --place) coins[place] = coins[place - 1];
        coins[place] = counts[symbol];
    }
    if (n < 2) return n ? coins[0] : 0;
    int size = 0;
#pragma unroll 1
    for (int level = 0; level < 12; ++level) {
        int coin = 0, package = 0, place = 0;
#pragma unroll 1
        for (; place < 2 * n - 2 && (coin < n || 2 * package + 1 < size); ++place) {
            i64 pair = 2 * package + 1 < size ? low[2 * package] + low[2 * package + 1] : 0;
            if (pair == 0 || (coin < n && coins[coin] <= pair)) high[place] = coins[coin++];
            else high[place] = pair, ++package;
        }
        size = place;
        i64* other = low;
        low = high, high = other;
    }
    i64 total = 0;
#pragma unroll 1
    for (int place = 0; place < size; ++place) total += low[place];
    return total;
}

// The bits of a list of `size` scales in Rice or Huffman words, the shorter ones; scales: counts.
__device__ __noinline__ i64 words_nbits(const i64* scales, i64 size, i64* counts, i64* coins, i64* low, i64* high) {
    int least = MOST_SCALE, bits = 8, shift = 0, top = 0;
#pragma unroll 1
    for (int scale = MOST_SCALE; scale > 0; --scale)
        if (scales[scale]) least = scale;
#pragma unroll 1
    for (int scale = 1; scale <= MOST_SCALE; ++scale)
        if (scales[scale]) bits |= scale - least;
    while (!(bits >> shift & 1)) ++shift;
#pragma unroll 1
    for (int u = 0; u < MOST_SCALE + 2; ++u) counts[u] = 0;
#pragma unroll 1
    for (int scale = 0; scale <= MOST_SCALE; ++scale) {
        if (!scales[scale]) continue;
        int u = scale ? ((scale - least) >> shift) + 1 : 0;
        counts[u] += scales[scale];
        top = max(top, u);
    }
    i64 low_median = 0, high_median = 0, below = 0;
#pragma unroll 1
    for (int u = 0; u <= top; ++u) {
        below += counts[u];
        low_median += below <= (size - 1) / 2;
        high_median += below <= size / 2;
    }
    i64 center = (low_median + high_median) / 2, fewest = 0;
#pragma unroll 1
    for (int k = 0; k < 8; ++k) {
        i64 total = (k + 1) * size;
#pragma unroll 1
        for (int u = 0; u <= top; ++u) {
            i64 distance = u - center;
            total += ((distance >= 0 ? 2 * distance : -1 - 2 * distance) >> k) * counts[u];
        }
        if (k == 0 || total < fewest) fewest = total;
    }
    i64 words = 8 + 4 * (top + 1) + huffman_nbits(counts, top, coins, low, high);
    return 2 + 2 + 7 + min(7 + 3 + fewest, words);
}

// The bits of the lists of scales of each cut, or of the chosen one: rows, then columns. Two blocks
// for a cut. logs: log2 of numbers up to `most`.
extern "C" __global__ void __launch_bounds__(128)
    size_lists(const i64* __restrict__ cuts, const i64* __restrict__ which, bool chosen,
               const u8* __restrict__ scales, const i64* __restrict__ logs, i64 most,
               i64* __restrict__ sizes) {
    __shared__ u32 often[MOST_SCALE + 1];
    __shared__ i64 wide[MOST_SCALE + 1], counts[ROOM], coins[ROOM], low[ROOM], high[ROOM];
    Cut cut = ((const Cut*)cuts)[chosen ? *which : blockIdx.x / 2];
    bool of_columns = blockIdx.x % 2;
#pragma unroll 1
    for (int k = threadIdx.x; k <= MOST_SCALE; k += blockDim.x) often[k] = 0;
    __syncthreads();
    i64 step = of_columns ? cut.group : 1;
    i64 size = !of_columns ? cut.height() : step ? (cut.width + step - 1) / step : 0;
    const u8* list = scales + (of_columns ? cut.columns : cut.rows);
#pragma unroll 1
    for (i64 k = threadIdx.x; k < size; k += blockDim.x) atomicAdd(&often[list[k * step]], 1u);
    __syncthreads();
    if (threadIdx.x) return;
    i64 nbits = 0;
#pragma unroll 1
    for (int k = 0; k <= MOST_SCALE; ++k) wide[k] = often[k];
    if (size) nbits = words_nbits(wide, size, counts, coins, low, high);
    if (size >= 2048) {  // rANS may pay
        i64 states = 0;
        int drop = 0, kinds = 0;
        while (size >> drop >= most) ++drop;
#pragma unroll 1
        for (int k = 0; k <= MOST_SCALE; ++k) {
            if (!wide[k]) continue;
            states += wide[k] * (logs[size >> drop] - logs[max(wide[k] >> drop, (i64)1)]);
            ++kinds;
        }
        nbits = min(nbits, (states >> POINT) + 6 * kinds + 860);
    }
    sizes[blockIdx.x] = nbits;
}

// The number of the first matrix with the fewest bits, estimated from `seen` of `size` symbols for
// size * times symbols; sizes: its column scales and its width. One thread.
extern "C" __global__ void
    choose_matrix(const i64* __restrict__ cuts, i64 count, const i64* __restrict__ nbits, i64 tables,
                  const i64* __restrict__ lists, i64 size, i64 times, i64 seen, i64* which,
                  i64* sizes) {
    i64 best = 0, fewest = 0;
    for (i64 c = 0; c < count; ++c) {
        i64 symbols = nbits[c * tables];
        for (i64 t = 1; t < tables; ++t) symbols = min(symbols, nbits[c * tables + t]);
        i64 whole = symbols * size * times / seen + lists[2 * c] * times + lists[2 * c + 1];
        if (c == 0 || whole < fewest) best = c, fewest = whole;
    }
    Cut cut = ((const Cut*)cuts)[best];
    *which = best;
    sizes[0] = cut.across;
    sizes[1] = cut.width;
}

// Copies the scales and counts of the chosen cut; its column scales go to out + at.
extern "C" __global__ void __launch_bounds__(256)
    take_chosen(const i64* __restrict__ cuts, const i64* __restrict__ which,
                const u8* __restrict__ scales, const u64* __restrict__ all_counts, i64 at,
                u8* __restrict__ out, u64* __restrict__ counts) {
    Cut cut = ((const Cut*)cuts)[*which];
    i64 height = cut.height();
    for (i64 i = GCODEC_FIRST; i < height + cut.across; i += GCODEC_STEP) {
        bool row = i < height;
        out[row ? i : at + i - height] = scales[row ? cut.rows + i : cut.columns + i - height];
    }
    for (i64 i = GCODEC_FIRST; i < COUNTS; i += GCODEC_STEP)
        counts[i] = all_counts[*which * COUNTS + i];
}

// Replaces the counts of a sample by those of all n symbols if the sample misses classes of many
// bits; see models.py. class_nbits: bits of a symbol of each class. One block.
extern "C" __global__ void __launch_bounds__(256)
    select_counts(const u64* __restrict__ all_counts, const i64* __restrict__ class_nbits, i64 n,
                  u64* __restrict__ counts) {
    __shared__ u64 sampled[CLASSES], sizes[CLASSES];
    __shared__ bool misses;
    for (int k = threadIdx.x; k < CLASSES; k += blockDim.x) sampled[k] = sizes[k] = 0;
    __syncthreads();
    for (int k = threadIdx.x; k < COUNTS; k += blockDim.x) {
        atomicAdd(&sampled[k / SYMBOLS], counts[k]);
        atomicAdd(&sizes[k / SYMBOLS], all_counts[k]);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        i64 total = 0, missed = 0, whole = 0;
        for (int k = 0; k < CLASSES; ++k) total += (i64)sampled[k];
        for (int k = 0; k < CLASSES; ++k) {
            i64 near = 0, around = 0, nbits = class_nbits[k] * (i64)sizes[k];
            for (int j = max(k - NEAR, 0); j <= min(k + NEAR, CLASSES - 1); ++j)
                near += (i64)sampled[j], around += (i64)sizes[j];
            whole += nbits;
            if (2 * n * near < around * total) missed += nbits;
        }
        misses = MISSED * missed > whole;
    }
    __syncthreads();
    if (!misses) return;
    for (int k = threadIdx.x; k < COUNTS; k += blockDim.x) counts[k] = all_counts[k];
}

__device__ __forceinline__ int bit_length(i64 x) { return x ? 64 - __clzll(x) : 0; }

// The model that suits the counts of a class best; see class_tables.py. sizes: MOST + 1.
__device__ void own_model(const u64* row, u16* sizes, u16* out) {
    i64 count = 0;
#pragma unroll 1
    for (int k = 0; k < SYMBOLS; ++k) count += (i64)row[k];
    int top = 0;
#pragma unroll 1
    for (int k = 1; k <= MOST; ++k)
        if (2 * TOTAL * (i64)(row[2 * k] + row[2 * k + 1]) >= count) top = k;
    // The two signs share the slots of a magnitude; each has at least one.
    i64 above = count - (i64)(row[0] + row[1]), taken = 0;
#pragma unroll 1
    for (int k = 1; k <= top; ++k) {
        i64 pair = (i64)(row[2 * k] + row[2 * k + 1]);
        above -= pair;
        i64 size = max((pair * TOTAL + count) / (2 * count), (i64)1);
        sizes[k] = (u16)size;
        taken += 2 * size;
    }
    i64 escape = min(max(above * TOTAL / count, (i64)1), (i64)(TOTAL - 1 - 2 * top));
    while (taken + escape >= TOTAL) {  // take back excess slots of both signs
        int largest = 1;
#pragma unroll 1
        for (int k = 2; k <= top; ++k)
            if (sizes[k] > sizes[largest]) largest = k;
        --sizes[largest];
        taken -= 2;
    }
#pragma unroll 1
    for (int k = 0; k < SYMBOLS; ++k) out[k] = k >= 2 && k <= 2 * top + 1 ? sizes[k / 2] : 0;
    out[ESCAPE] = (u16)escape;
    out[0] = (u16)(TOTAL - escape - taken);
}

// The table that suits counts best; a class without symbols gets the model of the nearest class that
// has some. ends: first and last class with symbols, and how many classes have some. A thread for a
// class.
extern "C" __global__ void __launch_bounds__(CLASSES)
    make_own(const u64* __restrict__ counts, u16* frequencies, i64* __restrict__ ends) {
    __shared__ u16 sizes[CLASSES][MOST + 2];
    __shared__ i32 filled[CLASSES];
    int t = threadIdx.x, near = t;
    u64 any = 0;
#pragma unroll 4
    for (int k = 0; k < SYMBOLS; ++k) any |= counts[t * SYMBOLS + k];
    filled[t] = any != 0;
    if (any) own_model(counts + t * SYMBOLS, sizes[t], frequencies + t * SYMBOLS);
    __syncthreads();
    int first = CLASSES, last = 0, classes = 0, previous = -1, following = CLASSES;
#pragma unroll 1
    for (int k = 0; k < CLASSES; ++k) {
        if (!filled[k]) continue;
        first = min(first, k);
        last = k;
        ++classes;
        if (k < t) previous = k;
        if (k > t) following = min(following, k);
    }
    if (!any && classes) {
        bool is_following = following < CLASSES && following - t < t - previous;
        near = previous < 0 || is_following ? following : previous;
#pragma unroll 4
        for (int k = 0; k < SYMBOLS; ++k)
            frequencies[t * SYMBOLS + k] = frequencies[near * SYMBOLS + k];
    }
    if (t) return;
    ends[0] = first;
    ends[1] = last;
    ends[2] = classes;
}

// ends[3] and ends[4] get the bits of symbols with their own table, and those of the table itself,
// whose classes are ends[0] to ends[1].
extern "C" __global__ void __launch_bounds__(SYMBOLS)
    price_own(const u64* __restrict__ counts, const u16* __restrict__ frequencies,
              const i64* __restrict__ logs, i64* ends) {
    __shared__ i64 scratch[SYMBOLS / WARP];
    int t = threadIdx.x, first = (int)ends[0], last = (int)ends[1];
    i64 high = 0, low = 0, sent = 0;
    const i64 whole = (i64)LOG2_TOTAL << POINT;
    bool is_sent = t == ESCAPE || (t >= 2 && t < ESCAPE && t % 2 == 0);
#pragma unroll 1
    for (int k = 0; k < CLASSES; ++k) {
        const u16* model = frequencies + k * SYMBOLS;
        i64 count = (i64)counts[k * SYMBOLS + t];
        bool has = model[t] && t != ESCAPE;
        i64 cost = has ? whole - logs[model[t]] : whole - logs[model[ESCAPE]] + (OUTLIER << POINT);
        high += cost * (count >> 16);
        low += cost * (count & 0xFFFF);
        if (is_sent && first <= k && k <= last && model[t]) sent += bit_length(model[t]) + 3;
    }
    high = scan_block<Sum>(high, scratch).total;
    low = scan_block<Sum>(low, scratch).total;
    sent = scan_block<Sum>(sent, scratch).total;
    if (t) return;
    ends[3] = (high + (low >> 16)) >> (POINT - 16);
    ends[4] = sent + 2 * 6 + 7 * (last - first + 1);
}

// The best table: the first of the cheapest static tables, or the symbols' own, which `frequencies`
// holds and `ends` describes. counts: those of all n symbols, or of a sample; nbits: of the counted
// symbols with each static table; lists: bits of the lists of scales. decision: number of the table,
// states, log2 of the symbols of a run, and total bits.
extern "C" __global__ void __launch_bounds__(SYMBOLS)
    choose_class_table(const i64* __restrict__ nbits, i64 tables, const u16* __restrict__ statics,
                       const i64* __restrict__ ends, const i64* __restrict__ lists,
                       const u64* __restrict__ counts, i64 n, u16* frequencies,
                       u8* __restrict__ tops, i64* __restrict__ decision) {
    __shared__ i64 scratch[SYMBOLS / WARP];
    int t = threadIdx.x;
    i64 best = 0, seen = 0;
    for (int k = t; k < COUNTS; k += blockDim.x) seen += (i64)counts[k];
    seen = scan_block<Sum>(seen, scratch).total;
#pragma unroll 1
    for (i64 k = 1; k < tables; ++k)
        if (nbits[k] < nbits[best]) best = k;
    i64 cost = nbits[best], own = ends[3];
    if (seen < n) cost = cost * n / seen, own = own * n / seen;  // `seen` is small
    own += ends[4];
    bool sent = cost >= WORTH && cost >= WORTH * ends[2] && own < cost;
    if (sent) {
        cost = own;
    } else {
#pragma unroll 4
        for (int k = 0; k < CLASSES; ++k)
            frequencies[k * SYMBOLS + t] = statics[best * COUNTS + k * SYMBOLS + t];
    }
    __syncthreads();
    if (t < CLASSES) {
        int size = 0;
#pragma unroll 4
        for (int k = 0; k < ESCAPE; k += 2) size += frequencies[t * SYMBOLS + k] > 0;
        tops[t] = (u8)(size - 1);
    }
    if (t) return;
    i64 total = cost + lists[0] + lists[1];
    i64 states = 32 * BITS_PER_STATE <= total ? 32 : 8 * BITS_PER_STATE <= total ? 8 : 2;
    decision[0] = sent ? SENT : best;
    decision[1] = states;
    decision[2] = states == 32 ? LOG2_STATES : LOG2_BLOCK;
    decision[3] = total;
}
