"""Test that docs/gpu.md states correctly which codecs run on a device."""

from __future__ import annotations

import re
from pathlib import Path

import gcodec

PAGE = Path(__file__).parent.parent.parent / "docs" / "gpu.md"
ROW = re.compile(r"^\| `([\w-]+)` \|([^|]*)\|$", re.MULTILINE)


def test_table() -> None:
    rows = ROW.findall(PAGE.read_text("utf-8"))
    codecs = gcodec.codecs().items()
    known = {name for name, cls in codecs if cls.id < 192 and cls.has_cuda_kernels}
    assert {name for name, _ in rows} == known
    for name, cell in rows:
        for spec in re.findall(r"`([^`]+)`", cell):
            codec = gcodec.parse(spec)
            assert (codec.name, codec.on_device) == (name, True), spec
