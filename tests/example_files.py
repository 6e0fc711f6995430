"""The files used by the examples in the help of the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import gcodec
from gcodec.patch.files import BaseFile, write_difference
from gcodec.tensorfiles.dumps import open_dump, write_dump

ROOT = Path(__file__).parents[1]
DUMP = ROOT / "examples" / "resnet8_digits_step0300.safetensors"
PREFIXES = ("bn1.", "conv1.", "fc.", "layer1.", "layer3.conv")
"""Starts of the names of the tensors that the examples select, and of a few others."""
POLICY = {"rules": [{"name": "*.bias", "codec": "raw"}, {"codec": "qsgd:bucket=512"}]}


def make(folder: Path) -> None:
    """Write the files and folders that the examples read."""
    with open_dump(DUMP) as dump:
        entries = [entry for entry in dump.entries if entry.name.startswith(PREFIXES)]
        tensors = {entry.name: _part(dump.load(entry)) for entry in entries}
    write_dump(folder / "grads.safetensors", tensors.items())
    changed = {name: x + np.float32(1e-3) * x for name, x in tensors.items()}
    write_dump(folder / "next.safetensors", changed.items())
    with (folder / "step.gcf").open("wb") as file:
        write_difference(BaseFile(folder / "grads.safetensors"), folder / "next.safetensors", file)
    frames = [gcodec.encode(x, "qsgd:bucket=512", name=name) for name, x in tensors.items()]
    (folder / "grads.gcf").write_bytes(b"".join(frames))
    (folder / "policy.json").write_text(json.dumps(POLICY), "utf-8")
    (folder / "run").mkdir()
    for step in (1, 2):
        few = list(tensors.items())[:3]
        counter = ("bn1.num_batches", np.array(step))
        write_dump(folder / "run" / f"step{step}.safetensors", [*few, counter])
    (folder / "encoded").mkdir()
    (folder / "encoded" / "step0.gcf").write_bytes(b"".join(frames[:3]))


def _part(x: Any) -> Any:
    """Return a gradient of a few input channels, because the examples need no large tensors."""
    return np.ascontiguousarray(x[:, :4]) if x.ndim == 4 else x
