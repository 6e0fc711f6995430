// Symbols of one, two or four bytes, and bit patterns of up to eight.
#pragma once
#include "runtime/types.cuh"

__device__ __forceinline__ u32 symbol_at(const u8* symbols, i32 width, i64 i) {
    if (width == 1) return symbols[i];
    if (width == 2) return ((const u16*)symbols)[i];
    return ((const u32*)symbols)[i];
}

__device__ __forceinline__ void put_symbol(u8* symbols, i32 width, i64 i, u32 symbol) {
    if (width == 1) symbols[i] = (u8)symbol;
    else if (width == 2) ((u16*)symbols)[i] = (u16)symbol;
    else ((u32*)symbols)[i] = symbol;
}

__device__ __forceinline__ u64 pattern_at(const u8* patterns, i32 width, i64 i) {
    return width == 8 ? ((const u64*)patterns)[i] : symbol_at(patterns, width, i);
}

__device__ __forceinline__ void put_pattern(u8* patterns, i32 width, i64 i, u64 pattern) {
    if (width == 8) ((u64*)patterns)[i] = pattern;
    else put_symbol(patterns, width, i, (u32)pattern);
}
