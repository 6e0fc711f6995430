"""Rows of the benchmark for sums of frames; their twin is `decode_add` of one frame.

They are also compared with `decode_add` of as many values, which come from frames of a small part
of the tensor: where these take as long, the time is that of decoding, and not that of memory.
"""

from __future__ import annotations

import numpy as np

from bench.kernel_rows import CACHED, Row

COUNT = 8  # frames
SPECS = (
    *("sign", "mxnet-1bit", "mxnet-2bit", "mxnet-2bit:threshold=3,form=sparse", "terngrad"),
    *("terngrad:pack=base3", "terngrad:pack=rans", "raw", "minmax", "minmax:bits=4,bucket=512"),
    *("topk:ratio=0.001", "topk", "topk:ratio=0.1", "randomk", "sparseloco:k=2"),
    *("qsgd:form=sparse", "qsgd:bucket=512", "ecsq:step=1", "dct8"),
)


def sum_rows(x: np.ndarray) -> list[Row]:
    """Return benchmark rows for the sum of `COUNT` frames of (n,) float32 elements."""
    import gcodec

    total = np.ones(x.size, np.float32)  # with every page touched

    def row(spec: str) -> Row:
        frames = [gcodec.encode(np.roll(x, seed), spec, seed=seed) for seed in range(COUNT)]
        part = gcodec.encode(x[:CACHED], spec)

        def add_parts() -> None:
            for _ in range(COUNT * x.size // CACHED):
                gcodec.decode_add(part, total[:CACHED])

        return Row(
            f"{spec}: decode_sum of {COUNT}",
            lambda: gcodec.decode_sum(frames, out=total),
            lambda: gcodec.decode_add(frames[0], total),
            cached=add_parts,
        )

    return [row(spec) for spec in SPECS]
