// How a kernel tells the host what is wrong: words of zeros, one for each thing that can be wrong.
#pragma once
#include "runtime/types.cuh"

// Notes a position; of all that are noted the least stays, as its complement. 0: there was none.
__device__ __forceinline__ void report(u64* word, i64 position) { atomicMax(word, ~(u64)position); }
