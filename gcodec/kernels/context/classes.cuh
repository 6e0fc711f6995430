// Classes of elements by the scales of their rows and columns; see class_map.py.
#pragma once
#include "runtime/types.cuh"

static const i32 CLASSES = 64, CENTER = 64;

// The scales of elements in rows of sizes[1]; there are sizes[0] column scales, which is 0 or the
// width. `rows` has a scale for each row.
struct Scales {
    const u8* rows;
    const u8* columns;
    i64 height, width;

    __device__ __forceinline__ Scales(const u8* rows, const u8* columns, const i64* sizes)
        : rows(rows), columns(columns), height(sizes[0]), width(sizes[1]) {}
};

// The row and column of an element, and its class.
struct Place {
    i64 row, column;

    __device__ __forceinline__ Place(const Scales& scales, i64 i) {
        if (((u64)i | (u64)scales.width) >> 32) row = i / scales.width;
        else row = (u32)i / (u32)scales.width;
        column = i - row * scales.width;
    }
    __device__ __forceinline__ u32 number(const Scales& scales) const {
        i32 column_scale = scales.height ? scales.columns[column] : CENTER;
        return (u32)min(max(column_scale + scales.rows[row] - CENTER, 0), CLASSES - 1);
    }
    __device__ __forceinline__ void next(const Scales& scales) {
        if (++column < scales.width) return;
        column = 0;
        ++row;
    }
};
