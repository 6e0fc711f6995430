// Copies bytes whose count only the device knows to memory that the host can read.
#include "runtime/types.cuh"

// Copies the words that contain the first `*count * unit + more` bits, at most `room` words.
extern "C" __global__ void copy_leading(
    const u32* source, i64 room, const i64* count, i64 unit, i64 more, u32* target) {
    i64 words = (*count * unit + more + 31) / 32;
    if (words > room) words = room;
    for (i64 i = GCODEC_FIRST; i < words; i += GCODEC_STEP) target[i] = source[i];
}
