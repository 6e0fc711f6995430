// Errors that a kernel reports to the host: one word per kind of error, zero at first.
#pragma once
#include "runtime/types.cuh"

// Reports an error at a position. The word keeps the complement of the smallest reported position.
__device__ __forceinline__ void report(u64* word, i64 position) { atomicMax(word, ~(u64)position); }
