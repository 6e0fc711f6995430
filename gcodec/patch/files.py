"""Differences of .safetensors files, from which the new file comes back byte for byte.

A file of frames as `gcodec.tensorfiles.exact_file` describes it, in which the frames of tensors
that the old file also has are patches where that is shorter, and frames of ``lossless`` otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from gcodec import api
from gcodec.codecs.patch import Patch
from gcodec.errors import ParameterError
from gcodec.frame import Frame, Header
from gcodec.limits import NO_LIMITS, Limits
from gcodec.patch.tensors import apply_patch, encode_patch
from gcodec.tensorfiles.entries import shown
from gcodec.tensorfiles.exact_file import OriginalFile, StoredTensor, files_of, originals
from gcodec.tensorfiles.structure import FILE_PREFIX
from gcodec.wire.primitives import Reader

_WHOLE = "lossless"
_SHORT = 4  # a patch of at most this part of its tensor is shorter than any frame without a base


class Difference(NamedTuple):
    """Numbers of tensors, values and bytes that `write_difference` wrote.

    Attributes
    ----------
    tensors, whole : int
        Number of tensors, and of those that are no patches.
    values : int
        Number of elements of all tensors.
    raw_nbytes : int
        Bytes of the new tensors.
    nbytes : int
        Bytes of the frames.
    """

    tensors: int
    whole: int
    values: int
    raw_nbytes: int
    nbytes: int


class BaseFile:
    """The tensors of a .safetensors file or of the shards of an index, by name.

    Parameters
    ----------
    path : pathlib.Path
    limits : Limits
        Bounds on each tensor.

    Raises
    ------
    FormatError
    """

    def __init__(self, path: Path, limits: Limits = NO_LIMITS) -> None:
        self._path, self._limits = path, limits
        self._tensors: dict[str, tuple[OriginalFile, StoredTensor]] = {}
        for each in files_of(path):
            file = OriginalFile(each)
            self._tensors |= {tensor.name: (file, tensor) for tensor in file.tensors}

    def find(self, name: str) -> np.ndarray | None:
        """Return a tensor as a view of the file, or None if there is none."""
        if name not in self._tensors:
            return None
        file, tensor = self._tensors[name]
        return file.load(tensor, self._limits)

    def decode(self, frame: Frame) -> np.ndarray:
        """Return the new tensor of a frame.

        Raises
        ------
        FormatError
            If the frame is damaged.
        ParameterError
            If the file is not the base of the patch.
        """
        return decoded(frame, self.find, str(self._path))


def decoded(frame: Frame, find: Callable[[str], np.ndarray | None], title: str) -> np.ndarray:
    """Return the tensor of a frame, which may be a patch.

    Parameters
    ----------
    frame : Frame
    find : callable
        Returns the base with a name, or None.
    title : str
        Name of the bases, for error messages.
    """
    if not isinstance(frame.codec, Patch):
        array: np.ndarray = frame.decode()
        return array
    base, name = None if frame.name is None else find(frame.name), shown(frame.name or "")
    if base is None:
        raise ParameterError(f"{title} has no tensor {name}, which is patched")
    try:
        patched: np.ndarray = apply_patch(frame, base)
    except ParameterError as error:
        raise ParameterError(f"tensor {name}: {error}") from None
    return patched


def shortest_frame(
    array: np.ndarray, base: np.ndarray | None, name: str, key: bytes | None = None
) -> bytes:
    """Return a tensor as a patch, or as a frame of ``lossless`` if that is shorter.

    Parameters
    ----------
    array : array
    base : array or None
        The old tensor, unless there is none. It may have another dtype or shape.
    name : str
    key : bytes, optional
        Key of the frame's tag.
    """
    patch = None
    if base is not None and base.dtype == array.dtype and base.shape == array.shape:
        patch = encode_patch(array, base, name=name, key=key)
        if _SHORT * len(patch) <= array.nbytes:
            return patch
    whole: bytes = api.encode(array, _WHOLE, name=name, key=key)
    return whole if patch is None else min(patch, whole, key=len)


def write_difference(
    old: BaseFile,
    new: Path,
    file: BinaryIO,
    limits: Limits = NO_LIMITS,
    advance: Callable[[int], object] = lambda nbytes: None,
    key: bytes | None = None,
) -> Difference:
    """Write the frames that turn one .safetensors file into another.

    Parameters
    ----------
    old : BaseFile
        The old tensors.
    new : pathlib.Path
        The new file, or the index of files in shards.
    file : BinaryIO
        Receives the frames, a tensor at a time.
    limits : Limits
        Bounds on each tensor.
    advance : callable
        Receives the number of bytes of each tensor that has been written.
    key : bytes, optional
        Key of the frames' tags.

    Raises
    ------
    FormatError
        If the new file is damaged, or is no .safetensors file.
    """
    tensors = whole = values = nbytes = raw_nbytes = 0
    for name, head, original in originals(new):
        start = np.frombuffer(head, np.uint8)
        frame = api.encode(start, _WHOLE, name=FILE_PREFIX + name, key=key)
        file.write(frame)
        nbytes += len(frame)
        if original is None:  # the index of shards, which contains no tensors
            continue
        for tensor in original.tensors:
            array = original.load(tensor, limits)
            frame = shortest_frame(array, old.find(tensor.name), tensor.name, key)
            file.write(frame)
            is_patch = Header.read(Reader(frame)).codec_id == Patch.id
            tensors, whole = tensors + 1, whole + (not is_patch)
            values, raw_nbytes = values + tensor.size, raw_nbytes + tensor.nbytes
            nbytes += len(frame)
            advance(tensor.nbytes)
    return Difference(tensors, whole, values, raw_nbytes, nbytes)
