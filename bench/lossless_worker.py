"""Code tensors with other lossless compressors; run by `bench.lossless` where they are installed.

``python -I lossless_worker.py IN.npz OUT.json``: the input contains bit patterns, uint8 of
float8_e4m3fn, uint16 of bfloat16 or uint32 of float32, of each tensor in each round: "0 1" is the
first tensor in the second round. The output contains, for each coder, the bits of all tensors in
the first round, and the least processor seconds of a round for encoding and for decoding them, on
one thread; or null for a coder that lacks the dtype.
"""

import json
import sys
import time

import blosc2
import google_crc32c
import numpy as np
import zstandard
from pcodec import ChunkConfig, standalone
from zipnn import ZipNN


def zipnn(bits):
    """Return functions that encode and decode; the encoder overwrites the array it gets."""
    dtype = {1: "float8_e4m3fn", 2: "bfloat16", 4: "float32"}[bits.itemsize]
    coder = ZipNN(bytearray_dtype=dtype, input_format="byte", threads=1)
    return lambda: bytearray(bits.tobytes()), coder.compress, coder.decompress


def zipnn_checked(bits):
    """Return functions that encode and decode with zipnn, and with a checksum, which it lacks."""
    source, encode, decode = zipnn(bits)
    checksums = []

    def encode_checked(data):
        coded = encode(data)
        checksums.append(google_crc32c.value(coded))
        return coded

    def decode_checked(coded):
        assert google_crc32c.value(coded) == checksums.pop()
        return decode(coded)

    return source, encode_checked, decode_checked


def zstd(bits):
    """Return functions that encode and decode with zstd -3."""
    encoder, decoder = zstandard.ZstdCompressor(3), zstandard.ZstdDecompressor()
    return bits.tobytes, encoder.compress, decoder.decompress


def blosc(bits):
    """Return functions that encode and decode shuffled bytes with zstd, Blosc's level 5."""
    settings = {
        "typesize": bits.itemsize,
        "codec": blosc2.Codec.ZSTD,
        "clevel": 5,
        "filters": [blosc2.Filter.SHUFFLE],
        "filters_meta": [0],
        "nthreads": 1,
    }
    return (
        bits.tobytes,
        lambda data: blosc2.compress2(data, **settings),
        lambda data: blosc2.decompress2(data, nthreads=1),
    )


def pcodec(bits):
    """Return functions that encode and decode with pcodec, which has no bfloat16, or no bytes."""
    if bits.itemsize == 1:
        return None
    values = bits if bits.itemsize == 2 else bits.view(np.float32)
    config = ChunkConfig()
    return (
        lambda: values,
        lambda data: standalone.simple_compress(data, config),
        standalone.simple_decompress,
    )


CODERS = {
    "zipnn": zipnn,
    "zipnn, checked": zipnn_checked,
    "pcodec": pcodec,
    "zstd -3": zstd,
    "blosc2": blosc,
}


def timed(call, *arguments):
    """Return the result of a call, and its processor seconds."""
    start = time.process_time()
    result = call(*arguments)
    return result, time.process_time() - start


def measure(coder, tensors):
    """Return the bits of all tensors, and the least seconds for encoding and for decoding."""
    total, seconds = 0, [0.0, 0.0]
    for rounds in tensors:
        best = [float("inf")] * 2
        for number, bits in enumerate(rounds):
            functions = coder(bits)
            if functions is None:
                return None
            source, encode, decode = functions
            data = source()
            coded, written = timed(encode, data)
            decoded, read = timed(decode, coded)
            best = [min(best[0], written), min(best[1], read)]
            if number == 0:
                assert np.asarray(memoryview(decoded)).tobytes() == bits.tobytes()
                total += 8 * len(coded)
        seconds = [seconds[0] + best[0], seconds[1] + best[1]]
    return [total, *seconds]


def main():
    """Read tensors and write measurements."""
    source, result = sys.argv[1:]
    with np.load(source) as data:
        tensors = {}
        for name in data.files:  # in order
            tensors.setdefault(name.split()[0], []).append(data[name])
    with open(result, "w", encoding="utf-8") as file:
        json.dump({name: measure(coder, tensors.values()) for name, coder in CODERS.items()}, file)


if __name__ == "__main__":
    main()
