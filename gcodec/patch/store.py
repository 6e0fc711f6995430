"""A folder of the steps of a training: anchors, which need no base, and patches between steps.

    000000000120.anchor.gcf                      all tensors of step 120
    000000000120-000000000121.patch.gcf          what turns step 120 into step 121

Each file is one that `gcodec.load_file` also opens, if it has no patches: a tree of the step, the
base and the tensors. A file appears under its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from gcodec import api
from gcodec.arrays.source import inspect
from gcodec.errors import Corrupt, FormatError, ParameterError
from gcodec.frame import check_key, stored_frame
from gcodec.limits import MAX_TENSORS, Limits
from gcodec.patch.files import decoded, shortest_frame
from gcodec.tensorfiles import structure
from gcodec.tensorfiles.atomic import TEMPORARY, AtomicFiles
from gcodec.tensorfiles.frame_file import TensorFile
from gcodec.tensorfiles.frame_list import located
from gcodec.tensorfiles.structure import STRUCTURE_NAME
from gcodec.tensorfiles.tree import put_together_like, take_apart
from gcodec.wire.kinds import check_integer

__all__ = ["PatchStore", "Snapshot"]

_DIGITS = 12
_MOST = 10**_DIGITS - 1
_ANCHOR = re.compile(rf"(\d{{{_DIGITS}}})\.anchor\.gcf", re.ASCII)
_PATCH = re.compile(rf"(\d{{{_DIGITS}}})-(\d{{{_DIGITS}}})\.patch\.gcf", re.ASCII)
_NO_BASE = -1
_ATTEMPTS = 9  # more attempts of a reader while the writer changes the folder
_MAX_VISITS = 8  # to each file on average; a folder of strangers could ask for thousands


class Snapshot(NamedTuple):
    """The tensors of a step.

    Attributes
    ----------
    step : int
    tree : object
        Tree of arrays, numbers and texts; see `gcodec.load_file`.
    """

    step: int
    tree: Any


class _Files(NamedTuple):
    """The files of a folder.

    Attributes
    ----------
    anchors : dict
        Path of each anchor, by its step.
    patches : dict
        Base and path of each patch, by its step.
    """

    anchors: dict[int, Path]
    patches: dict[int, tuple[int, Path]]

    @property
    def steps(self) -> list[int]:
        """The steps that have a file, in increasing order."""
        return sorted({*self.anchors, *self.patches})

    def ancestry(self, step: int) -> list[int]:
        """Return a step, the base of its patch, the base of that one's patch, and so on."""
        steps = [step]
        while steps[-1] in self.patches:
            steps.append(self.patches[steps[-1]][0])
        return steps


class PatchStore:
    """A folder of consecutive versions of tensors, written by one process and read by many.

    The writer publishes the tensors of a step. The store keeps them as a patch on the preceding
    step and, now and then, as an anchor, from which readers start. Files appear complete or not at
    all, so a crash leaves the last published step. A reader that has a step needs only the patches
    since then. Checksums, and the digest of the base in each patch, are verified on every read.

    Parameters
    ----------
    folder : str or os.PathLike
        Folder, which is created if it does not exist.
    anchor_every : int
        Number of steps from one anchor to the next.
    keep : int
        Number of anchors that are kept. `publish` deletes older ones, with the patches that
        precede the oldest anchor.
    limits : Limits, optional
        Bounds on each tensor that is read; default ``Limits()``.
    key : bytes, optional
        Secret of 1 to 64 bytes, the same for the writer and the readers. `PatchStore` derives a
        key for each file from this secret, the step and its base. The frames of the file end with
        tags of the derived key, and readers refuse all others, such as frames of another step. A
        store with a key cannot be pickled or copied, because the pickle would contain the key.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> from tempfile import TemporaryDirectory
    >>> weights = {"fc": np.zeros(1000, np.float32)}
    >>> with TemporaryDirectory() as folder:
    ...     writer, reader = gcodec.PatchStore(folder), gcodec.PatchStore(folder)
    ...     writer.publish(0, weights)
    ...     step, own = reader.load()
    ...     for step in (1, 2, 3):
    ...         weights["fc"][step] = step
    ...         writer.publish(step, weights)
    ...     step, own = reader.catch_up(own, 0)
    ...     step, own["fc"][:5]
    (3, array([0., 1., 2., 3., 0.], dtype=float32))
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        anchor_every: int = 16,
        keep: int = 2,
        limits: Limits | None = None,
        key: bytes | None = None,
    ) -> None:
        self.folder = Path(folder)
        allowed = "an integer of at least 1"
        self.anchor_every = check_integer("anchor_every", anchor_every, 1, _MOST, allowed)
        self.keep = check_integer("keep", keep, 1, _MOST, allowed)
        self._limits, self._key = Limits.or_default(limits), check_key(key)
        self._last: tuple[int, dict[str, np.ndarray]] | None = None
        self.folder.mkdir(parents=True, exist_ok=True)

    def __repr__(self) -> str:
        """Return the folder and the settings."""
        settings = f"anchor_every={self.anchor_every}, keep={self.keep}"
        return f"<PatchStore {os.fspath(self.folder)!r}: {settings}>"

    def __getstate__(self) -> dict[str, object]:
        """Return the attributes; refuse to show a key in a pickle."""
        if self._key is not None:
            reason = "the pickle would contain the key: open the folder in the other process"
            raise TypeError(f"a PatchStore with a key cannot be pickled or copied: {reason}")
        return dict(vars(self))

    def steps(self) -> list[int]:
        """Return the steps that have a file, in increasing order."""
        return self._files().steps

    def publish(self, step: int, tree: object) -> None:
        """Add the tensors of a step.

        The store keeps a copy of the tensors in memory, as the base of the next patch.

        Parameters
        ----------
        step : int
            Number of the step, above that of the preceding one.
        tree : object
            Tree of tensors; see `gcodec.save_file`. Those of a device are copied to the host.

        Raises
        ------
        ParameterError
            If the step is not above the last one, or the tree has no tensor or too many.
        TypeError
            If a leaf has another type, or gcodec does not support an array.
        OSError
            If a file cannot be written, or another process publishes at the same time. The store
            then has the steps that it had before.
        """
        step = check_integer("step", step, 0, _MOST, f"an integer from 0 to {_MOST}")
        with _locked(self.folder) as descriptor:
            if self._last is None:
                for path in self.folder.glob(TEMPORARY):  # of a writer that crashed
                    _delete(path)
            self._last = step, self._publish(step, tree, descriptor)
            with contextlib.suppress(OSError):  # the next step deletes these files
                self._prune()

    def _publish(self, step: int, tree: object, descriptor: int | None) -> dict[str, np.ndarray]:
        """Write the files of a step, and return its tensors by name; see `_locked`."""
        files = self._files()
        last = files.steps[-1] if files.steps else _NO_BASE
        if step <= last:
            raise ParameterError.of("step", step, f"above {last}, the last step of the store")
        base_step, base = self._base(last)
        outline: Any
        outline, tensors = take_apart({"step": step, "base": base_step, "tree": tree})
        if not 1 <= len(tensors) <= MAX_TENSORS:
            allowed = f"1 to {MAX_TENSORS}"
            raise ParameterError(f"tree: has {len(tensors)} tensors, must have {allowed}")
        arrays = {name: np.array(inspect(x, name).on_host()) for name, x in tensors}
        paths = list[Path]()
        with AtomicFiles() as new:
            if base_step != _NO_BASE:
                paths.append(self.folder / f"{base_step:0{_DIGITS}}-{step:0{_DIGITS}}.patch.gcf")
                _write(new.open(paths[-1]), outline, arrays, base, self._key_of(step, base_step))
            anchor = max(files.anchors, default=_NO_BASE)
            since = 1 + sum(patched > anchor for patched in files.patches)  # with this step
            if _NO_BASE in (base_step, anchor) or since >= self.anchor_every:
                paths.append(self.folder / f"{step:0{_DIGITS}}.anchor.gcf")
                key = self._key_of(step, _NO_BASE)
                _write(new.open(paths[-1]), {**outline, "base": _NO_BASE}, arrays, {}, key)
        try:
            if descriptor is not None:
                os.fsync(descriptor)  # so that the new names survive a power failure
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EBADF):  # of systems that cannot
                for path in paths:
                    _delete(path)
                raise
        return arrays

    def load(self, step: int | None = None, *, like: object = None) -> Snapshot:
        """Return the tensors of a step.

        Parameters
        ----------
        step : int, optional
            Number of the step. Default: the last one.
        like : object, optional
            Tree with the containers, libraries, devices and float dtypes of the result, such as
            the ``state_dict()`` of a model; see `gcodec.load_file`. Default: NumPy arrays.

        Raises
        ------
        ParameterError
            If the store does not have the step, or `like` has another structure or an array of
            another shape.
        FormatError
            If a file is damaged, and no other anchor leads to the step.
        """
        return _like(self._retried(step, None), like)

    def catch_up(
        self, tree: object, step: int, to: int | None = None, *, like: object = None
    ) -> Snapshot:
        """Return the tensors of a later step, given those of a step.

        Only the patches in between are read. If one of them has been deleted or is damaged, an
        anchor is read instead.

        Parameters
        ----------
        tree : object
            Tensors of step `step`, as `load` returned them. They do not change.
        step : int
            Number of their step.
        to : int, optional
            Number of the later step. Default: the last one.
        like : object, optional
            Tree with the types of the result, often `tree`; see `load`.

        Raises
        ------
        ParameterError
            If the store does not have the step `to`, the tensors are not those of `step`, or
            `like` has another structure or an array of another shape.
        FormatError
            If a file is damaged, and no other anchor leads to the step.
        """
        step = check_integer("step", step, 0, _MOST, f"an integer from 0 to {_MOST}")
        return _like(self._retried(to, Snapshot(step, tree)), like)

    def _retried(self, step: int | None, own: Snapshot | None) -> Snapshot:
        """Return the tensors of a step; start again if the writer changes the folder meanwhile."""
        if step is not None:
            step = check_integer("step", step, 0, _MOST, f"an integer from 0 to {_MOST}")
        for _ in range(_ATTEMPTS):
            files = self._files()
            try:
                return self._read(files, step, own)
            except OSError as error:
                # NFS reports a file that another machine deleted while it was read as stale.
                if error.errno not in (errno.ENOENT, errno.ESTALE):
                    raise
            except ParameterError:
                # A list may lack both the file that was deleted and the one that replaced it.
                if self._files() == files:
                    raise
        return self._read(self._files(), step, own)

    def _read(self, files: _Files, step: int | None, own: Snapshot | None) -> Snapshot:
        steps = files.steps
        if not steps:
            raise ParameterError(f"{self.folder} has no steps yet: publish writes the first one")
        step = steps[-1] if step is None else step
        if step not in steps:
            raise ParameterError.of("step", step, "one of the store's steps")
        starts: list[Snapshot | int] = sorted(files.anchors, reverse=True)
        if own is not None:
            if own.step > step:
                raise ParameterError.of("step", own.step, f"at most {step}")
            starts.insert(0, own)
        wrong: FormatError | None = None
        ancestry, visited = files.ancestry(step), list[Path]()
        places = {ancestor: place for place, ancestor in enumerate(ancestry)}
        for start in starts:
            place = places.get(start.step if isinstance(start, Snapshot) else start)
            if place is None:
                continue
            try:
                return Snapshot(step, self._follow(files, start, ancestry[:place][::-1], visited))
            except FormatError as error:
                wrong = wrong or error
            if len(visited) > _MAX_VISITS * len(steps):
                break
        if wrong is not None:
            raise wrong
        raise ParameterError.of("step", step, "a step that an anchor leads to")

    def _follow(
        self, files: _Files, start: Snapshot | int, chain: list[int], visited: list[Path]
    ) -> object:
        """Return the tree after the patches of a chain; add the files that it reads to a list."""
        parts = [(step, *files.patches[step]) for step in chain]
        tree: object = None
        arrays = dict[str, np.ndarray]()
        if isinstance(start, Snapshot):
            tree, arrays = start.tree, _named(start.tree) if chain else {}
        else:
            parts.insert(0, (start, _NO_BASE, files.anchors[start]))
        for number, part in enumerate(parts):
            step, base, path = part
            visited.append(path)
            try:
                with located(path.name, default=None):
                    tree, arrays = self._tensors(path, step, base, arrays)
            except ParameterError as error:
                if isinstance(start, Snapshot) and not number:  # the caller's tensors
                    raise
                raise Corrupt(f"{path.name}: {error}") from None
        return tree

    def _tensors(
        self, path: Path, step: int, base: int, arrays: dict[str, np.ndarray]
    ) -> tuple[object, dict[str, np.ndarray]]:
        """Return the tree of a file, and its tensors by name, given those of its base."""
        new = dict[str, np.ndarray]()
        with TensorFile(path, self._limits, self._key_of(step, base)) as file:

            def decode(name: str) -> np.ndarray:
                new[name] = decoded(file.frame(name), arrays.get, f"step {base}")
                return new[name]

            document = file.rebuild(decode)
        is_whole = isinstance(document, dict) and document.keys() == {"step", "base", "tree"}
        if not is_whole or (document["step"], document["base"]) != (step, base):
            raise Corrupt("the file contains another step")
        return document["tree"], new

    def _key_of(self, step: int, base: int) -> bytes | None:
        """Return the key of the tags of a file, or None without a secret."""
        if self._key is None:
            return None
        return hashlib.blake2b(f"gcodec.PatchStore {base} {step}".encode(), key=self._key).digest()

    def _base(self, last: int) -> tuple[int, dict[str, np.ndarray]]:
        """Return the last step and its tensors by name, or no step if they cannot be read."""
        if last == _NO_BASE:
            return _NO_BASE, {}
        if self._last is None or self._last[0] != last:
            try:
                self._last = last, _named(self.load(last).tree)
            except (FormatError, ParameterError):  # then an anchor starts anew
                return _NO_BASE, {}
        return self._last

    def _prune(self) -> None:
        """Delete the anchors that are not kept, and the patches before the oldest anchor."""
        files = self._files()
        kept = sorted(files.anchors)[-self.keep :]
        oldest = kept[0] if kept else _NO_BASE
        for step, (_, path) in files.patches.items():
            if step <= oldest:
                _delete(path)
        for step, path in files.anchors.items():
            if step < oldest:
                _delete(path)

    def _files(self) -> _Files:
        anchors, patches = dict[int, Path](), dict[int, tuple[int, Path]]()
        for path in self.folder.iterdir():
            anchor, patch = _ANCHOR.fullmatch(path.name), _PATCH.fullmatch(path.name)
            if not (anchor or patch) or not os.path.isfile(path):  # a pipe may never end
                continue
            if anchor:
                anchors[int(anchor[1])] = path
            elif patch:
                base, step = map(int, patch.groups())
                if base < step:  # others would lead readers in circles
                    patches[step] = base, path
        return _Files(anchors, patches)


def _named(tree: object) -> dict[str, np.ndarray]:
    """Return the tensors of a tree by their names in files of the store."""
    _, tensors = take_apart({"step": _NO_BASE, "tree": tree})
    return {name: inspect(x, name).on_host() for name, x in tensors}


def _like(snapshot: Snapshot, like: object) -> Snapshot:
    """Return a snapshot with the types of another tree, if there is one."""
    if like is None:
        return snapshot
    outline: Any
    outline, tensors = take_apart({"step": snapshot.step, "tree": snapshot.tree})
    arrays = dict(tensors)

    def array_like(name: str, x: Any) -> object:
        array = inspect(arrays[name], name).on_host()
        return stored_frame(array, array.dtype.name).decode(like=x)

    return snapshot._replace(tree=put_together_like(outline["tree"], like, array_like))


def _write(
    file: BinaryIO,
    outline: object,
    arrays: dict[str, np.ndarray],
    bases: dict[str, np.ndarray],
    key: bytes | None,
) -> None:
    """Write a tree to a file, with patches on the tensors of the base."""
    text = np.frombuffer(structure.write(outline), np.uint8)
    file.write(api.encode(text, "raw", name=STRUCTURE_NAME, key=key))
    for name, array in arrays.items():
        try:
            frame = shortest_frame(array, bases.get(name), name, key)
        except (ParameterError, TypeError) as error:
            raise type(error)(f"tensor {name!r}: {error}") from None
        file.write(frame)


def _delete(path: Path) -> None:
    """Delete a file, unless the system refuses because another process uses it."""
    with contextlib.suppress(OSError):
        path.unlink()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int | None]:
    """Keep other writers out until the end of the block, where the system can lock a folder.

    Yields
    ------
    int or None
        File descriptor of the folder, or None where folders have none.

    Raises
    ------
    BlockingIOError
        If another writer publishes.
    """
    if os.name != "posix":
        yield None
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        reason = "another writer publishes to this store"
        raise BlockingIOError(error.errno, reason, os.fspath(folder)) from None
    except OSError:
        pass  # the system cannot lock folders
    try:
        yield descriptor
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # forked processes have the descriptor, too
        os.close(descriptor)
