// Words of four or eight bytes of codes, at any address of an array of `nbytes` bytes. Bytes after its
// end are neither read nor written; they are 0.
#pragma once
#include "runtime/types.cuh"

__device__ __forceinline__ u64 load_codes(const u8* data, i64 at, i64 nbytes, i64 size) {
    if (at + size <= nbytes && (u64)(data + at) % (u64)size == 0)
        return size == 4 ? *(const u32*)(data + at) : *(const u64*)(data + at);
    u64 word = 0;
    for (i64 k = 0; k < size; ++k)
        if (at + k < nbytes) word |= (u64)data[at + k] << 8 * k;
    return word;
}

__device__ __forceinline__ void store_codes(u8* out, i64 at, i64 nbytes, i64 size, u64 word) {
    if (at + size <= nbytes && (u64)(out + at) % (u64)size == 0) {
        if (size == 4) *(u32*)(out + at) = (u32)word;
        else *(u64*)(out + at) = word;
        return;
    }
    for (i64 k = 0; k < size; ++k)
        if (at + k < nbytes) out[at + k] = (u8)(word >> 8 * k);
}
