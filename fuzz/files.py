"""Targets that read files, and the target that runs the command on a file."""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from click.testing import CliRunner

import gcodec
from fuzz.promises import LIMITS, promise
from fuzz.repair import repair
from gcodec.cli.main import cli
from gcodec.tensorfiles import structure
from gcodec.tensorfiles.dumps import open_dump
from gcodec.tensorfiles.frame_list import mapped, outlines

SUFFIXES = (".gcf", ".safetensors", ".npz", ".npy", ".pt")
VERBS = ("inspect", "verify", "dissect", "decode", "compare", "encode")
EXITS = (0, 1, 2, 3, 4, 5)  # success, damaged, wrong usage, unreadable, over a limit, unsafe


def _dump(suffix: str, data: bytes) -> None:
    path = _scratch() / f"fuzzed{suffix}"
    path.write_bytes(data)
    _load(path)


def _load(path: Path) -> None:
    try:
        with open_dump(path, limits=LIMITS) as dump:
            for entry in dump.entries:
                with contextlib.suppress(gcodec.FormatError):
                    dump.load(entry)
    except gcodec.FormatError:
        return


@functools.cache
def _scratch() -> Path:
    path = tempfile.mkdtemp(prefix="gcodec-fuzz-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


def npy(data: bytes) -> None:
    """Read a .npy file."""
    _dump(".npy", data)


def tree(data: bytes) -> None:
    """Read the structure of a tree: a line of JSON, and then a line for the name of each tensor.

    The structure that gcodec writes for the tree stands for the same tree.
    """
    text, *names = data.split(b"\n")
    paths = [name.decode("latin-1") for name in names]
    try:
        outline = structure.read(text, paths)
    except gcodec.FormatError:
        return
    promise(repr(structure.read(structure.write(outline), paths)) == repr(outline), "one tree")


def npz(data: bytes) -> None:
    """Read a .npz file."""
    _dump(".npz", data)


def safetensors(data: bytes) -> None:
    """Read a .safetensors file."""
    _dump(".safetensors", data)


def pt(data: bytes) -> None:
    """Read a .pt file."""
    _dump(".pt", data)


def distcp(data: bytes) -> None:
    """Read a folder of torch.distributed.checkpoint, whose metadata these bytes are."""
    folder = _scratch() / "fuzzed"
    folder.mkdir(exist_ok=True)
    for rank in (0, 1):
        (folder / f"__{rank}_0.distcp").write_bytes(bytes(1 << 14))
    (folder / ".metadata").write_bytes(data)
    _load(folder)


def gcf(data: bytes) -> None:
    """List the frames of a file by reading only their headers."""
    path = _scratch() / "fuzzed.gcf"
    path.write_bytes(data)
    end = 0
    with contextlib.suppress(gcodec.FormatError):
        for outline in outlines(mapped(path)):
            promise(outline.start == end < outline.end <= len(data), "frames lie end to end")
            end = outline.end
    with contextlib.suppress(gcodec.FormatError):
        for frame in gcodec.iter_frames(data, limits=LIMITS):
            end -= frame.nbytes
            promise(math.prod(frame.shape) <= LIMITS.max_elements, "limits hold")
        promise(end == 0, "headers and frames tell the same ends")


def message(data: bytes) -> None:
    """Decode a message of many tensors whose checksums the target corrects first.

    All ways to decode it agree, a file with these frames has the same tensors, and so has a
    message that gcodec writes for them.
    """
    corrected, left = b"", data
    while left:
        frame = repair(left)
        corrected, left = corrected + frame, left[len(frame) :]
    try:
        tensors = gcodec.decode_many(corrected, limits=LIMITS)
    except gcodec.FormatError:
        return
    promise(sum(x.size for x in tensors.values()) <= LIMITS.max_elements, "limits hold")
    out = {name: np.ones_like(x) for name, x in tensors.items()}
    gcodec.decode_many(corrected, out=out)
    again = gcodec.decode_many(gcodec.encode_many(tensors, "lossless"))
    for other, way in ((out, "into arrays"), (again, "from another message")):
        _promise_same(tensors, other, f"tensors that are read {way} are the same")
    path = _scratch() / "message.gcf"
    path.write_bytes(corrected)
    if tensors and not any(name.startswith("\\") for name in tensors):
        with gcodec.open(path, limits=LIMITS) as file:
            promise(file.names() == list(tensors), "a file of these frames has the same names")
            _promise_same(tensors, file, "a file of these frames has the same tensors")


def _promise_same(
    tensors: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray], what: str
) -> None:
    promise(tensors.keys() == others.keys(), what)
    for name, x in tensors.items():
        other = others[name]
        same_kind = other.dtype == x.dtype and other.shape == x.shape
        promise(same_kind and other.tobytes() == x.tobytes(), what)


def command(data: bytes) -> None:
    """Run the command on a file; two bytes select verb and suffix, the others are the file."""
    if len(data) < 2:
        return
    verb, suffix = VERBS[data[0] % len(VERBS)], SUFFIXES[data[1] % len(SUFFIXES)]
    path, output = _scratch() / f"given{suffix}", _scratch() / "made.npz"
    path.write_bytes(data[2:])
    output.unlink(missing_ok=True)
    arguments = [verb, *[str(path)] * (1 + (verb == "compare"))]
    if verb in ("decode", "encode"):
        arguments += ["-o", str(output)]
    handlers = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(cli, arguments)
    signal.signal(signal.SIGTERM, handlers)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    promise(result.exit_code in EXITS, f"{verb} ends with a documented exit code")
    left = [one.name for one in _scratch().iterdir() if one.name.startswith("made.npz")]
    promise(left == (["made.npz"] if output.exists() else []), "no partial file is left")
