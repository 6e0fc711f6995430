"""The work of ``gcodec encode``, ``decode`` and ``apply``: files of frames, written and read."""

from __future__ import annotations

import contextlib
import glob
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gcodec
from gcodec.advisor.choose import Target
from gcodec.analysis.groups import selects
from gcodec.arrays.nonfinite import NonFinite, find_nonfinite, with_policy
from gcodec.arrays.source import as_dtype, inspect
from gcodec.cli import files
from gcodec.cli.outcome import CheckFailed, Outcome
from gcodec.cli.render.output import progress
from gcodec.cli.render.text import command, ratio
from gcodec.codec import Codec
from gcodec.codecs import parse
from gcodec.errors import ParameterError, Unsupported
from gcodec.feedback import derive_seed
from gcodec.frame import Frame, own_frames
from gcodec.limits import Limits
from gcodec.payload import MissedTarget
from gcodec.policy import Policy
from gcodec.tensorfiles.atomic import WriteBehind, atomic_write
from gcodec.tensorfiles.dumps import write_dump
from gcodec.tensorfiles.entries import Array, Dump, Entry, remedy
from gcodec.tensorfiles.exact_file import Restorer, file_name, originals
from gcodec.tensorfiles.frame_file import TensorNames
from gcodec.tensorfiles.frame_list import read_frames, with_members
from gcodec.tensorfiles.safetensors_file import INDEX_SUFFIX
from gcodec.tensorfiles.structure import FILE_PREFIX, STRUCTURE_NAME, is_reserved
from gcodec.wire import primitives

# --- encode


class EncodedFrame(NamedTuple):
    """A frame to write.

    Attributes
    ----------
    data : bytes
        The frame.
    codec : Codec
        Codec of the frame.
    name : str
        Name of the frame.
    array : array or None
        The encoded tensor; None for the first bytes of a file.
    missed : sequence of MissedTarget
        The target that the codec cannot meet, if there is one.
    """

    data: bytes
    codec: Codec
    name: str
    array: Array | None
    missed: Sequence[MissedTarget] = ()


def selected(dump: Dump, layers: tuple[str, ...]) -> list[Entry]:
    """Return the tensors to encode, or raise an error with the reason why there are none."""
    entries = [entry for entry in dump.entries if selects(layers, entry.name)]
    if not dump.entries:
        raise Unsupported("the file contains no tensors")
    if not entries:
        raise _unmatched(layers)
    for entry in entries:
        if is_reserved(entry.name):
            reason = "has a name that files of frames reserve; "
        elif entry.dtype not in primitives.DTYPE_CODES:
            dtypes, advice = ", ".join(primitives.DTYPE_CODES), remedy(entry.dtype)
            reason = f"is {entry.dtype}, and frames store {dtypes}; {advice}"
            reason += ", or " if advice else ""
        else:
            continue
        exclude = "exclude it with -L " + command([f"!{glob.escape(entry.name)}"])
        raise Unsupported(f"tensor {entry.name!r} {reason}{exclude}")
    return entries


def _unmatched(layers: tuple[str, ...]) -> ParameterError:
    return ParameterError(f"no tensor matches --layers {' '.join(layers)}")


def codec_of(entry: Entry, policy: Target | Policy) -> Codec | Target:
    """Return the codec of a tensor, or the target for which `encoded` chooses one."""
    if isinstance(policy, Policy):
        return policy.codec(entry.name, entry.shape, entry.dtype)
    return parse("raw") if entry.dtype in primitives.UNCONVERTED else policy


def encoded(
    dump: Dump,
    codecs: Iterable[tuple[Entry, Codec | Target]],
    seed: int,
    nonfinite: NonFinite,
    key: bytes | None,
) -> Iterator[EncodedFrame]:
    """Encode tensors one by one, each with its codec, or with one that is chosen for a target."""
    for entry, codec in codecs:
        array = dump.load(entry)
        tensor_seed = derive_seed(seed, name=entry.name)
        missed: list[MissedTarget] = []
        try:
            if isinstance(codec, Target):
                codec = _choose(array, codec, tensor_seed, nonfinite)
            frame = gcodec.encode(
                array,
                codec,
                seed=tensor_seed,
                name=entry.name,
                nonfinite=nonfinite,
                key=key,
                report=missed.append,
            )
        except ParameterError as error:
            raise _refusal(entry, array, error) from None
        yield EncodedFrame(frame, codec, entry.name, array, missed)


def exact_codec(
    dump: Dump, policy: Target | Policy, layers: tuple[str, ...], nonfinite: NonFinite
) -> Codec | None:
    """Return the codec with which the output decodes to the bytes of the file, or None.

    That is lossless for all tensors of a .safetensors file.
    """
    if not isinstance(policy, Policy) or dump.format != "safetensors" or nonfinite == "zero":
        return None
    first, *others = policy.rules
    is_only = not others and not layers and first.to_dict().keys() == {"codec"}
    return first.codec if is_only and first.codec.keeps_every_bit else None


def exactly_encoded(
    dump: Dump, codec: Codec, limits: Limits, key: bytes | None
) -> Iterator[EncodedFrame]:
    """Encode all bytes of the files of a dump; see `exact_codec`."""
    for file, head, original in originals(dump.path):
        name = FILE_PREFIX + file
        frame = gcodec.encode(np.frombuffer(head, np.uint8), codec, name=name, key=key)
        yield EncodedFrame(frame, codec, name, None)
        if original is not None:
            for tensor in original.tensors:
                array = original.load(tensor, limits)
                frame = gcodec.encode(array, codec, name=tensor.name, key=key)
                yield EncodedFrame(frame, codec, tensor.name, array)


def write_frames(
    frames: Iterable[EncodedFrame], target: Path, entries: Sequence[Entry], quiet: bool
) -> dict[str, Any]:
    """Write a file of frames, and return its part of the JSON document.

    Parameters
    ----------
    frames : iterable of EncodedFrame
        The frames, which are encoded one by one while the file is written.
    target : pathlib.Path
        File to write.
    entries : sequence of Entry
        The tensors of the frames, for the progress bar.
    quiet : bool
        Whether to show no progress.
    """
    tensors = values = nbytes = raw_nbytes = 0
    codecs: Counter[str] = Counter()
    missed: dict[str, dict[str, object]] = {}
    integers: list[str] = []
    total = sum(entry.size for entry in entries)
    with (
        progress(target.name, total, quiet=quiet) as advance,
        atomic_write(target) as file,
        WriteBehind(file) as behind,
    ):
        for frame in frames:
            behind.write(frame.data)
            nbytes += len(frame.data)
            codecs[str(frame.codec)] += frame.array is not None
            if frame.array is None:
                continue
            tensors, values = tensors + 1, values + frame.array.size
            raw_nbytes += frame.array.nbytes
            if frame.missed:
                missed[frame.name] = frame.missed[0]._asdict()
            if frame.codec.name == "raw" and frame.array.dtype.name in primitives.UNCONVERTED:
                integers.append(frame.name)
            advance(frame.array.size)
    return {
        "tensors": tensors,
        "codecs": dict(codecs),
        "integers": integers,
        "values": values,
        "bytes": nbytes,
        "bits_per_value": ratio(8 * nbytes, values),
        "ratio": ratio(raw_nbytes, nbytes),
        "missed": missed,
    }


def _choose(array: Array, target: Target, seed: int, nonfinite: NonFinite) -> Codec:
    """Choose a codec for the values that it will receive."""
    if nonfinite == "propagate":
        allowed = "raise or zero when gcodec chooses the codec"
        raise ParameterError.of("nonfinite", nonfinite, allowed)
    tensor = inspect(array, "x").read()
    if nonfinite == "zero" and (finite := with_policy(tensor, "zero")) is not tensor:
        array = as_dtype(finite.values, tensor.dtype).reshape(tensor.shape)
    return gcodec.choose(array, max_nmse=target.max_nmse, max_bits=target.max_bits, seed=seed)


def _refusal(entry: Entry, array: Array, error: Exception) -> Exception:
    """Return the error for a tensor that the encoder refuses."""
    # The codec sees float32 values: a float64 outside of their range becomes infinite.
    count, indices = find_nonfinite(inspect(array, "x").read(all_dtypes=True).values)
    if not count:
        return ParameterError(f"tensor {entry.name!r}: {error}")
    values, advice = "NaN or Inf", "--nonfinite zero replaces them by 0"
    if entry.dtype == "float64":  # finite numbers may exceed float32
        values, advice = "NaN or Inf as float32", f"{advice}, and lossless keeps them"
    return CheckFailed(
        f"tensor {entry.name!r} contains {count} {values}, the first at flat index {indices[0]}; "
        f"{advice}"
    )


# --- decode


def target_of(
    path: Path, output: str | None, original: str | None, force: bool
) -> tuple[Path, bool]:
    """Return the output for a file of frames, and whether it is a folder.

    `original` is the name of the original file that the frames begin with, or None.
    """
    if original is None or not original.lower().endswith(INDEX_SUFFIX):
        return files.outputs([path], output, ".safetensors", force)[0], False
    target = path.with_suffix("") if output is None else Path(output)
    is_file = target.exists() or target.suffix.lower() == ".safetensors"
    if output == "-" or (is_file and not target.is_dir()):
        raise ParameterError(f"{target}: OUT must be a directory for a model in shards")
    return target, True


def write_tensors(
    data: Any, target: Path, layers: tuple[str, ...], limits: Limits, key: bytes | None
) -> dict[str, Any]:
    """Write selected tensors of frames to a file, and return a part of the JSON document."""
    tensors = values = 0

    def decoded() -> Iterator[tuple[str, Array]]:
        nonlocal tensors, values
        names = TensorNames()
        stored_frames = read_frames(data, limits, key)
        for stored, members in with_members(stored_frames, lambda stored: stored.frame):
            own = stored.name or ""
            if (stored.number == 0 and own == STRUCTURE_NAME) or own.startswith(FILE_PREFIX):
                continue
            frames = [stored.frame]
            if members is not None:
                with stored.locate_errors():
                    frames = list(own_frames(stored.frame, members))
            for frame in frames:
                name = names.add(frame.name)
                if not selects(layers, name):
                    continue
                with stored.locate_errors():
                    array = frame.decode()
                tensors, values = tensors + 1, values + array.size
                yield name, array
        if layers and not tensors:
            raise _unmatched(layers)

    with files.written_file(target, ".safetensors") as written:
        try:
            write_dump(written, decoded())
        except ParameterError as error:
            if not tensors:
                raise
            # The suffix is allowed, so a tensor has a name that the format cannot store.
            raise Unsupported(str(error)) from None
        nbytes = written.stat().st_size
    return {"tensors": tensors, "values": values, "bytes": nbytes}


def restore(
    data: Any,
    target: Path,
    is_folder: bool,
    force: bool,
    outcome: Outcome,
    key: bytes | None,
    decode: Callable[[Frame], Array] = lambda frame: frame.decode(),
) -> dict[str, Any]:
    """Write the original files of frames, a tensor at a time; see `write_tensors`.

    `decode` returns the tensor of a frame, and `key` is that of the tags.
    """
    tensors = values = 0
    output = _new_folder(target) if is_folder else files.written_file(target, ".safetensors")
    with output as place:

        def path_of(name: str) -> Path:
            if not is_folder:
                return place
            files.check_replaceable([place / name], force)
            return place / name

        with (
            progress(target.name, len(data), quiet=outcome.quiet) as advance,
            Restorer(path_of, decode) as out,
        ):
            for stored in read_frames(data, outcome.limits, key):
                with stored.locate_errors():
                    out.add(stored.frame)
                if file_name(stored.frame.name) is None:
                    tensors, values = tensors + 1, values + stored.frame.size
                advance(stored.end - stored.start)
        nbytes = sum(path.stat().st_size for path in out.paths)
    return {"tensors": tensors, "values": values, "bytes": nbytes}


@contextlib.contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Make a folder for the files of a model; one that is new disappears after an exception."""
    is_new = not target.exists()
    target.mkdir(parents=True, exist_ok=True)
    try:
        yield target
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):
                target.rmdir()
        raise
