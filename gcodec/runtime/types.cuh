// Integers and floats by their width. NVRTC lacks the host's headers, so this file declares them.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

static_assert(sizeof(i8) == 1 && sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "");
static_assert(sizeof(f32) == 4 && sizeof(f64) == 8, "");

// The loop `for (i64 i = GCODEC_FIRST; i < n; i += GCODEC_STEP)` is a grid-stride loop.
#define GCODEC_FIRST ((i64)blockIdx.x * blockDim.x + threadIdx.x)
#define GCODEC_STEP ((i64)gridDim.x * blockDim.x)
