// Models of classes and quantizers, and the counts of symbols by model; see trellis.py.
#include "kernels/numeric/counting.cuh"
#include "kernels/bits/listed.cuh"
#include "kernels/quantize/trellis.cuh"

static const u32 MODELS = 128;
static const int THREADS = 256;
static const i64 TILE = 4096;  // divides a run

// Symbols and models in coding order. A thread has a lane of a run.
extern "C" __global__ void __launch_bounds__(64)
    add_quantizers(const u8* __restrict__ symbols, i64 n, i32 lanes, u8* models) {
    i64 runs = (n + RUN - 1) / RUN;
    for (i64 task = GCODEC_FIRST; task < runs * lanes; task += GCODEC_STEP) {
        i64 start = task / lanes * RUN, stop = start + RUN < n ? start + RUN : n;
        u32 path = 0;
        for (i64 i = start + task % lanes; i < stop; i += lanes) {
            models[i] |= (u8)above_class(path);
            path = path_after(path, symbols[i]);
        }
    }
}

// Counts every `step`-th run; counts: 256 for each model.
extern "C" __global__ void __launch_bounds__(THREADS)
    count_models(const u8* __restrict__ symbols, const u8* __restrict__ models, i64 n, i64 step,
                 u64* __restrict__ counts) {
    __shared__ u32 near[MODELS * NEAR];
    i64 tiles = RUN / TILE;
    count_by_model(
        symbols, n, TILE, MODELS, near, counts,
        [&](i64 tile) { return tile / tiles * step * RUN + tile % tiles * TILE; },
        [&](i64 i) { return (u32)models[i] & (MODELS - 1); }
    );
}

// has_symbol: 256 of each model, 0 for the symbols that it does not have.
extern "C" __global__ void __launch_bounds__(THREADS)
    list_unknown_models(const u8* __restrict__ symbols, const u8* __restrict__ models, i64 n,
                        const u8* __restrict__ has_symbol, u64* __restrict__ out, i64 room) {
    list(
        n, out, room,
        [&](i64 i) { return !has_symbol[(models[i] & (MODELS - 1)) << 8 | symbols[i]]; },
        [&](i64 i) { return (u64)symbols[i]; }
    );
}

extern "C" __global__ void __launch_bounds__(THREADS)
    join_models(const u8* __restrict__ symbols, const u8* __restrict__ models, i64 n,
                u16* __restrict__ out) {
    for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP)
        out[i] = (u16)((u32)models[i] << 8 | symbols[i]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    join_model_escapes(const i64* __restrict__ places, i64 count, u16* __restrict__ out, i64 n) {
    for (i64 j = GCODEC_FIRST; j < count; j += GCODEC_STEP) {
        if ((u64)places[j] >= (u64)n) continue;
        u32 joined = out[places[j]], symbol = joined & 0xFF;
        u32 escape = (symbol + 2) & 4 ? ODD_ESCAPE : EVEN_ESCAPE;
        out[places[j]] = (u16)((joined & 0xFF00) | escape);
    }
}
