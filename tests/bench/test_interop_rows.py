"""Every module of `gcodec.interop` has rows in the benchmark, and they run."""

from __future__ import annotations

import numpy as np

import gcodec.interop
from bench.interop_rows import interop_rows


def test_every_peer_is_encoded_and_decoded() -> None:
    rows = interop_rows(np.random.default_rng(0).standard_normal(8192, dtype=np.float32))
    names = [row.name for row in rows]
    assert len(names) == len(set(names))
    peers = {name.split()[1].rstrip(",") for name in names} - {"torch"}
    assert peers == set(gcodec.interop.__all__)
    for row in rows:
        row.run()
