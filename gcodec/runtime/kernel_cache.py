"""The cache of compiled kernels: where the machine code of a kernel comes from.

gcodec looks for it in the user's cache, then among the kernels that a wheel carries
(`gcodec.runtime.shipped`). If it finds none, it compiles the kernel and stores the code in the
cache. Numba's own cache is not used. Its key ignores a changed helper function of another file and
a changed bounds-check setting, so Numba would run stale code.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gcodec.errors import CompilerDisabled
from gcodec.runtime import compilation_watchers, loader, processor, shipped, store
from gcodec.runtime.build_id import build_id
from gcodec.runtime.jit import checked

if TYPE_CHECKING:
    from gcodec.runtime.jit import Kernel
    from gcodec.runtime.processor import Processor

_GRACE = 2.0  # seconds to let other processes compile before this one loads the compiler

# --- files -------------------------------------------------------------------------------------


def location() -> Path:
    """Return the path of the directory for compiled kernels, whether it exists or not.

    Raises
    ------
    OSError
        The user has no home directory.
    """
    build = f"kernels-{build_id()}"
    try:
        if override := os.environ.get("GCODEC_CACHE_DIR"):
            return Path(override, build).expanduser()
        if sys.platform == "win32":
            return Path(os.environ["LOCALAPPDATA"], "gcodec", "Cache", build)
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "gcodec" / build
        caches = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(caches):  # the XDG specification says to ignore it
            caches = str(Path.home() / ".cache")
        return Path(caches, "gcodec", build)
    except (KeyError, RuntimeError):
        raise store.Refused("The user has no home directory.") from None


def directory() -> Path | None:
    """Return the directory of compiled kernels, created if missing; None if caching is not safe.

    gcodec runs the files in this directory. It therefore refuses a directory that other users
    could write to or replace; see `gcodec.runtime.store`.
    """
    try:
        with store.opened(location()) as opened:
            return Path(opened.path)
    except OSError:
        return None


def fault() -> str:
    """Return the reason why kernels cannot be cached, as a sentence; empty if they can."""
    try:
        with store.opened(location()) as opened:
            return "" if opened.is_writable() else f"Nothing can be written to {opened.path}."
    except store.Refused as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror}."


def compiler_fault() -> str:
    """Return the reason why kernels cannot be compiled, as a sentence; empty if they can."""
    from numba.core import config

    if not getattr(config, "DISABLE_JIT", 0):
        return ""
    return (
        "Numba's compiler is disabled, and gcodec cannot compile kernels without it: unset the "
        "environment variable NUMBA_DISABLE_JIT, and start Python again."
    )


def identity_of(name: str, signature: str, target: Processor) -> bytes:
    """Return everything that determines the machine code of a kernel for a processor."""
    import llvmlite

    compiler = f"llvmlite {llvmlite.__version__}"
    return repr((build_id(), name, signature, checked(), compiler, *target)).encode()


def missing(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Return the kernels that no valid file in the cache contains, for this processor."""
    with _opened() as opened:
        return [
            kernel
            for kernel in kernels
            if _Source(kernel.name, kernel.signature, opened).stored() is None
        ]


@contextlib.contextmanager
def _opened(shared: bool = True) -> Iterator[store.Directory | None]:
    """Open the cache; None where there is no safe directory, or for a loop of somebody else."""
    with contextlib.ExitStack() as stack:
        opened = None
        if shared:
            with contextlib.suppress(OSError):
                opened = stack.enter_context(store.opened(location()))
        yield opened


def _has_compiled() -> bool:
    """Return whether this process has loaded the compiler."""
    return "gcodec.runtime.compiler" in sys.modules


class _Source:
    """Where the code of one kernel, or of the entry, comes from.

    Parameters
    ----------
    name, signature : str
        Name and signature of the kernel.
    directory : Directory, optional
        The open cache.
    """

    def __init__(self, name: str, signature: str, directory: store.Directory | None) -> None:
        self._directory = directory
        self.target = processor.target()
        self._identity = identity_of(name, signature, self.target)
        self._file = store.file_name(name, self._identity)

    def stored(self) -> bytes | None:
        """Return the code in the cache, if there is any."""
        if self._directory is None:
            return None
        try:
            return store.unsealed(self._identity, self._directory.read(self._file))
        except OSError:
            return None

    def compiled(self, compile_: Callable[[Processor], bytes]) -> bytes:
        """Return the code from the cache or the compiler, and store it."""
        if self._directory is None:
            return compile_(self.target)
        with self._directory.locked(self._file, grace=0.0 if _has_compiled() else _GRACE):
            code = self.stored()  # another process may have been faster
            if code is None:
                code = compile_(self.target)
                # A full disk must not cause an error.
                with contextlib.suppress(OSError):
                    self._directory.write(self._file, store.sealed(self._identity, code))
        return code


# --- functions ---------------------------------------------------------------------------------


class Code(NamedTuple):
    """A compiled kernel.

    Attributes
    ----------
    results : str
        Types of the results, separated by spaces.
    loop : bytes
        Object file.
    """

    results: str
    loop: bytes

    def packed(self) -> bytes:
        """Return the contents of the kernel's file."""
        return self.results.encode() + b"\n" + self.loop


def function(kernel: Kernel) -> Callable[..., Any]:
    """Return the function that runs a kernel, loaded or compiled."""
    for callee in kernel.kernels():
        callee.run  # noqa: B018
    code = code_of(kernel)
    _loaded.append(kernel)
    failure = IndexError if checked() else RuntimeError
    return _loader().function(
        code.loop, kernel.name, kernel.symbol, kernel.types, code.results.split(), failure
    )


def code_of(kernel: Kernel) -> Code:
    """Return the code of a kernel from the cache, from the wheel or from the compiler."""
    return _unpacked(_code(kernel.name, kernel.signature, _compiler_of(kernel), kernel.is_shared))


def compiled(kernel: Kernel) -> Code:
    """Return the code of a kernel for the exact processor, from the cache or the compiler."""
    with _opened(kernel.is_shared) as opened:
        source = _Source(kernel.name, kernel.signature, opened)
        return _unpacked(source.stored() or source.compiled(_compiler_of(kernel)))


def _compiler_of(kernel: Kernel) -> Callable[[Processor], bytes]:
    """Return the function that compiles a kernel for a processor."""

    def compile_kernel(target: Processor) -> bytes:
        if fault := compiler_fault():
            raise CompilerDisabled(fault)
        import logging  # which takes as long to import as a small tensor to encode

        logger = logging.getLogger("gcodec.runtime")
        if not _has_compiled():
            logger.info("compiling kernels, once; gcodec.warmup compiles them in advance")
        logger.debug("compiling the kernel %s", kernel.name)
        from gcodec.runtime import compiler

        with contextlib.ExitStack() as stack:
            for watch in compilation_watchers:
                stack.enter_context(watch(kernel.name))
            return Code(*compiler.loop_code(kernel, target, checked())).packed()

    return compile_kernel


def _unpacked(code: bytes) -> Code:
    results, _, loop = code.partition(b"\n")
    return Code(results.decode(), loop)


@functools.cache
def _loader() -> loader.Loader:
    return loader.Loader(entry_code())


def entry_code() -> bytes:
    """Return the object file of the entry."""

    def compile_entry(target: Processor) -> bytes:
        from gcodec.runtime import entry

        return entry.code(target)

    return _code("entry", "", compile_entry)


def _code(
    name: str, signature: str, compile_: Callable[[Processor], bytes], shared: bool = True
) -> bytes:
    with _opened(shared) as opened:
        source = _Source(name, signature, opened)
        if (code := source.stored()) is not None:
            return code
        if shared and not checked() and (code := shipped.code_of(name, signature)) is not None:
            return code
        return source.compiled(compile_)


@contextlib.contextmanager
def watched(compiled: Callable[[str], object]) -> Iterator[None]:
    """Call a function with the name of each kernel that this process has compiled."""

    @contextlib.contextmanager
    def watch(name: str) -> Iterator[None]:
        yield
        compiled(name)

    compilation_watchers.append(watch)
    try:
        yield
    finally:
        compilation_watchers.remove(watch)


def loaded() -> list[Kernel]:
    """Return the kernels that this process has loaded."""
    return list(_loaded)


_loaded: list[Kernel] = []
