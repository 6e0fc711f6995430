"""Files of trees of tensors: saved, loaded, or opened by name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gcodec.api.frames import encode
from gcodec.arrays.nonfinite import NonFinite, check_nonfinite
from gcodec.codec import CodecLike
from gcodec.errors import FormatError, ParameterError
from gcodec.feedback import derive_seed
from gcodec.frame import check_key
from gcodec.kernels.numeric.philox import check_seed
from gcodec.limits import MAX_TENSORS, WORK_LIMITS, Limits
from gcodec.payload import MissedTarget
from gcodec.policy import Policy, policy_of
from gcodec.tensorfiles import structure
from gcodec.tensorfiles.atomic import WriteBehind, atomic_write
from gcodec.tensorfiles.frame_file import OTHER_SUFFIXES, TensorFile
from gcodec.tensorfiles.frame_list import message_of
from gcodec.tensorfiles.tree import take_apart

__all__ = ["TensorFile", "load_file", "open", "save_file"]


def save_file(
    tree: object,
    path: str | os.PathLike[str],
    codec: CodecLike | Policy,
    *,
    seed: int = 0,
    nonfinite: NonFinite = "raise",
    key: bytes | None = None,
    report: Callable[[str, MissedTarget], object] | None = None,
) -> None:
    """Compress a tree of tensors, such as a state dict or a checkpoint, to a file of frames.

    The file appears under its name only when it is complete. Each tensor becomes a frame. The
    names of a mapping of tensors are its keys. In other trees, the name of a tensor is the path
    to it: keys, names of fields and indices, joined by dots. A backslash precedes a dot or a
    backslash inside of a key. A tensor that occurs twice is stored twice.

    Parameters
    ----------
    tree : object
        Mapping, list, tuple, NamedTuple or dataclass, nested in any way up to 64 deep; or, if JAX
        is loaded, any node that is registered with it. Keys are texts and integers. Leaves are
        arrays, as for `gcodec.encode`, and numbers, texts and None, which are stored exactly.
        Integers, as keys and leaves, are from -2**63 to 2**64 - 1.
    path : str or os.PathLike
        File to write, by convention with the suffix .gcf. An existing file is replaced. The
        suffixes of other formats are refused.
    codec : str, mapping, Codec or Policy
        Codec of all tensors, or a `gcodec.Policy` that picks one for each name. Integers,
        booleans and floats of 8 bits are always stored unchanged: by this codec if it keeps every
        bit, as ``lossless`` does, or else by ``raw``.
    seed : int
        Seed for stochastic rounding; each tensor derives its own seed from it and from its name.
    nonfinite : {"raise", "zero", "propagate"}
        Policy for NaN and Inf in tensors; see `gcodec.encode`.
    key : bytes, optional
        Secret of 1 to 64 bytes, with which each frame gets a tag. A tag authenticates the tensor
        and its name, not the set of the tensors: somebody with several files of one key can
        exchange tensors of the same name between them.
    report : callable, optional
        Function that receives a name and a `gcodec.payload.MissedTarget` for each tensor that
        cannot meet the target of its codec.

    Raises
    ------
    ParameterError
        If an argument is invalid, if a tensor contains NaN or Inf under ``"raise"``, or if the
        tree is too deep or has more than 65,536 tensors.
    TypeError
        If a leaf or a key has another type, or gcodec does not support an array.
    OSError
        If the file cannot be written.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> checkpoint = {"model": {"fc": np.array([0.5, -2.0], np.float32)}, "betas": (0.9, 0.999)}
    >>> with TemporaryDirectory() as folder:
    ...     gcodec.save_file(checkpoint, Path(folder, "checkpoint.gcf"), "raw")
    ...     gcodec.load_file(Path(folder, "checkpoint.gcf"))
    {'model': {'fc': array([ 0.5, -2. ], dtype=float32)}, 'betas': (0.9, 0.999)}
    """
    _check_path(path)
    policy = policy_of(codec)
    seed = check_seed(seed)
    check_nonfinite(nonfinite)
    check_key(key)
    if str(path).lower().endswith(OTHER_SUFFIXES):
        allowed = "a file named .gcf, because it contains frames and no other format"
        raise ParameterError.of("path", str(path), allowed)
    outline, tensors = take_apart(tree)
    if len(tensors) > MAX_TENSORS:
        raise ParameterError(f"tree: has {len(tensors)} tensors, must have at most {MAX_TENSORS}")
    with atomic_write(path) as file, WriteBehind(file) as behind:
        if outline is not None:
            text = np.frombuffer(structure.write(outline), np.uint8)
            behind.write(encode(text, "raw", name=structure.STRUCTURE_NAME, key=key))
        for name, array in tensors:
            missed: list[MissedTarget] = []
            try:
                frame = encode(
                    array,
                    policy,
                    seed=derive_seed(seed, name=name),
                    name=name,
                    nonfinite=nonfinite,
                    key=key,
                    report=missed.append,
                )
            except (ParameterError, TypeError) as error:
                raise type(error)(f"tensor {name!r}: {error}") from None
            behind.write(frame)
            if report is not None and missed:
                report(name, missed[0])


def load_file(
    path: str | os.PathLike[str],
    like: object = None,
    *,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> Any:
    """Decode all tensors of a file of frames, and return them in their tree.

    Parameters
    ----------
    path : str or os.PathLike
        File that `save_file`, the command ``gcodec encode``, or any other writer of frames made.
    like : object, optional
        Tree of the same structure. The result has the types of its containers, and the library,
        device and float dtype of its arrays, but the numbers and texts of the file. Default:
        dicts, lists and tuples of NumPy arrays; NamedTuples, dataclasses and registered nodes
        become dicts or lists.
    limits : Limits, optional
        Bounds on each tensor. Default: ``Limits()``; with `like`, its arrays are the bounds.
    key : bytes, optional
        Key of the frames' tags. A frame without a tag of this key is refused.

    Returns
    -------
    object
        The tree. A file without a structure, such as one of ``gcodec encode``, is a dict of
        tensors by name; frames without a name are called tensor0, tensor1 and so on.

    Raises
    ------
    FormatError
        If the file is damaged, is no file of frames, or exceeds the limits.
    ParameterError
        If `like` has another structure or an array of another shape, or an argument is invalid.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     gcodec.save_file([np.float32([0.5, -2]), 3], Path(folder, "pair.gcf"), "sign")
    ...     gcodec.load_file(Path(folder, "pair.gcf"))
    [array([ 1.25, -1.25], dtype=float32), 3]
    """
    if like is not None and limits is None:
        limits = WORK_LIMITS
    with open(path, limits=limits, key=key) as file, _errors_naming(path):
        return file.load(like)


def open(
    path: str | os.PathLike[str], *, limits: Limits | None = None, key: bytes | None = None
) -> TensorFile:
    """Open a file of frames as a mapping of names to tensors, which are decoded on access.

    The file is mapped into memory. Another program may replace it, as `save_file` does, or append
    to it. But if a program shortens it meanwhile, access to the missing part ends this process.

    Parameters
    ----------
    path : str or os.PathLike
        File of frames.
    limits : Limits, optional
        Bounds on each tensor. Default: ``Limits()``.
    key : bytes, optional
        Key of the frames' tags, which are checked when a tensor is decoded.

    Returns
    -------
    TensorFile
        Mapping with the methods `names`, `shapes`, `dtypes`, `headers`, `decode`, `decode_range`,
        `frame`, `load` and `close`. Use it as a context manager.

    Raises
    ------
    FormatError
        If the file does not begin with a frame, or exceeds the limits.
    ParameterError
        If an argument is invalid.
    OSError
        If the file cannot be opened.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "weights.gcf")
    ...     gcodec.save_file({"w": np.arange(6, dtype=np.float32).reshape(3, 2)}, path, "raw")
    ...     with gcodec.open(path) as file:
    ...         file.names(), file.shapes(), file.decode_range("w", 2, 4)
    (['w'], {'w': (3, 2)}, array([2., 3.], dtype=float32))
    """
    _check_path(path)
    with _errors_naming(path):
        return TensorFile(Path(path), Limits.or_default(limits), key)


@contextlib.contextmanager
def _errors_naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make a `FormatError` name the file, and the command that reads a file of another format."""
    try:
        yield
    except FormatError as error:
        suffix = Path(path).suffix.lower()
        hint = ""
        if suffix in OTHER_SUFFIXES:
            hint = f"; the command gcodec encode compresses {suffix} files"
        raise type(error)(f"{Path(path)}: {message_of(error)}{hint}", error.offset) from None


def _check_path(path: object) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path is of type {type(path).__name__}: must be a str or os.PathLike")
