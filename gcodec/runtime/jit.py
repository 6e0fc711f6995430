"""Compilation: ``@kernel`` and ``@inline`` declare loops, ``@intrinsic`` declares LLVM code.

Nothing is imported or compiled before the first call. Every kernel has one explicit signature and
runs without the GIL and without fastmath. Its machine code is cached in a file of its own (see
`gcodec.runtime.store`) under a *build id*: the hash of all kernel sources, of Numba's version and
of the checked flag. gcodec does not use Numba's own cache. The key of that cache ignores a changed
helper function of another file and a changed bounds-check setting, so Numba would run stale code.
Numba also unpickles any content of its cache files.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import pickle
import pkgutil
import sys
import threading
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gcodec.errors import CompilerDisabled
from gcodec.runtime import store
from gcodec.runtime.device import device_of, no_twin

_SCALARS = (
    *("float32", "float64", "boolean"),
    *("uint8", "uint16", "uint32", "uint64", "int32", "int64"),
)
RUNTIME = Path(__file__).parent
KERNELS = RUNTIME.with_name("kernels")
_PACKAGE = "gcodec.kernels."
_LOCK = threading.RLock()
_FACTORIES: list[tuple[Any, Callable[[], Iterable[tuple[Any, ...]]]]] = []


def checked() -> bool:
    """Return whether kernels contain bounds checks (``GCODEC_CHECKED=1``)."""
    return os.environ.get("GCODEC_CHECKED", "") not in ("", "0")


@functools.lru_cache(maxsize=1)
def build_id() -> str:
    """Return the hash of everything that determines the kernels' machine code, 32 hex digits."""
    import numba

    digest = hashlib.blake2b(f"{numba.__version__} {checked()}".encode(), digest_size=16)
    for folder in (RUNTIME, KERNELS):
        for source in sorted(folder.rglob("*.py")):
            name = source.relative_to(folder.parent).as_posix()
            digest.update(name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def cache_location() -> Path:
    """Return the path of the directory for compiled kernels, whether it exists or not.

    Raises
    ------
    OSError
        The user has no home directory.
    """
    build = f"kernels-{build_id()}"
    try:
        if override := os.environ.get("GCODEC_CACHE_DIR"):
            return Path(override, build)
        if sys.platform == "win32":
            return Path(os.environ["LOCALAPPDATA"], "gcodec", "Cache", build)
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "gcodec" / build
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "gcodec", build)
    except (KeyError, RuntimeError):
        raise store.Refused("The user has no home directory.") from None


def cache_directory() -> Path | None:
    """Return the directory of compiled kernels, created if missing; None if caching is not safe.

    gcodec runs the files in this directory. It therefore refuses a directory that other users
    could write to or replace; see `gcodec.runtime.store`.
    """
    try:
        with store.opened(cache_location()) as directory:
            return Path(directory.path)
    except OSError:
        return None


def cache_fault() -> str:
    """Return the reason why kernels cannot be cached, as a sentence; empty if they can."""
    try:
        with store.opened(cache_location()) as directory:
            if directory.is_writable():
                return ""
            return f"Nothing can be written to {directory.path}."
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
        "Numba's compiler is disabled, and gcodec cannot run without it: unset the environment "
        "variable NUMBA_DISABLE_JIT, and start Python again."
    )


class _Lazy:
    """A function that becomes a Numba object at its first use."""

    def __init__(self, function: Callable[..., Any], variant: str = "") -> None:
        self.function = function
        self.variant = variant
        self.__doc__ = function.__doc__
        self._built: Any = None

    @property
    def built(self) -> Any:
        """The Numba object; the first access builds it."""
        if self._built is None:
            with _LOCK:
                if self._built is None:
                    self._built = self._build()
        return self._built

    def _build(self) -> Any:
        raise NotImplementedError

    def _bound(self) -> types.FunctionType:
        """Copy the function with a name of its own, and lazy names replaced by Numba objects.

        Without a name of their own, the functions of one factory would share the symbol of their
        machine code. A process could then run the cached code of a sibling.
        """
        function = self.function
        assert isinstance(function, types.FunctionType)
        names = dict(function.__globals__)
        for name in function.__code__.co_names:
            if name in names:
                names[name] = _built(names[name])
        cells = tuple(types.CellType(_built(c.cell_contents)) for c in function.__closure__ or ())
        code, defaults = function.__code__, function.__defaults__
        copy = types.FunctionType(code, names, function.__name__, defaults, cells)
        digest = hashlib.blake2b(self.variant.encode(), digest_size=6).hexdigest()
        copy.__qualname__ = function.__qualname__ + (f"_{digest}" if self.variant else "")
        copy.__module__ = function.__module__
        return copy

    def _njit(self, **options: Any) -> Any:
        import numba

        if fault := compiler_fault():
            raise CompilerDisabled(fault)
        return numba.njit(boundscheck=checked(), error_model="numpy", **options)(self._bound())


def _built(value: Any) -> Any:
    return value.built if isinstance(value, _Lazy) else value


class Intrinsic(_Lazy):
    """A function ``(typing context, *argument types) -> (signature, code generator)``."""

    def _build(self) -> Any:
        from numba.extending import intrinsic as numba_intrinsic

        return numba_intrinsic(self.function)


class Inline(_Lazy):
    """A helper that Numba inlines into the calling kernels."""

    def _build(self) -> Any:
        return self._njit(inline="always")


class Subroutine(_Lazy):
    """A helper that is compiled once for each calling kernel, and not inlined by Numba."""

    def _build(self) -> Any:
        return self._njit(nogil=True)


class Kernel(_Lazy):
    """A loop that is compiled for one signature at its first call."""

    def __init__(self, function: Callable[..., Any], signature: str, variant: str) -> None:
        super().__init__(function, variant)
        assert variant or not function.__closure__, "kernels of a factory need a variant"
        self.signature = signature

    @property
    def name(self) -> str:
        """Module, qualified name and variant, such as ``pack.packer.pack 3 True``."""
        module = self.function.__module__.rpartition(".")[2]
        qualified = f"{module}.{self.function.__qualname__}".replace(".<locals>", "")
        return f"{qualified} {self.variant}".strip()

    @property
    def cached(self) -> bool:
        """Whether a valid file contains the machine code for this processor."""
        from numba.core.registry import cpu_target

        identity = self.identity(cpu_target.target_context.codegen())
        try:
            with store.opened(cache_location()) as directory:
                data = directory.read(store.file_name(self.name, identity))
        except OSError:
            return False
        return store.unsealed(identity, data) is not None

    def identity(self, codegen: Any) -> bytes:
        """Return everything that determines the machine code of this kernel.

        Parameters
        ----------
        codegen : numba.core.codegen.Codegen
            Code generator for the target processor.
        """
        kernel = (build_id(), self.name, self.signature)
        return repr((*kernel, *_compiler(), codegen.magic_tuple())).encode()

    def __call__(self, *args: Any) -> Any:
        """Run the compiled loop; `args` must have exactly the declared types."""
        try:
            return (self._built or self.built)(*args)
        except TypeError:
            # An array on a device is the caller's mistake; any other mismatch is a bug of gcodec.
            if device_of(*args) is not None:
                raise no_twin(self.name) from None
            raise

    def _build(self) -> Any:
        dispatcher = self._njit(nogil=True)
        with contextlib.ExitStack() as stack:
            # The build id covers the sources of gcodec's own kernels only.
            if self.function.__module__.startswith(_PACKAGE):
                with contextlib.suppress(OSError):
                    directory = stack.enter_context(store.opened(cache_location()))
                    dispatcher._cache = _cache(self, directory)
            dispatcher.compile(self._types())
        dispatcher.disable_compile()
        return dispatcher

    def _types(self) -> tuple[Any, ...]:
        return tuple(_numba_type(word) for word in self.signature.split(", "))


def kernel(signature: str, variant: str = "") -> Callable[[Callable[..., Any]], Kernel]:
    """Declare a kernel.

    Parameters
    ----------
    signature : str
        Types of the parameters, separated by ``", "``: a scalar type such as ``float32``, or
        ``in float32[]`` (read-only array) or ``out float32[]`` (array that is written).
    variant : str
        Constants of a kernel that a factory makes. They distinguish it from its siblings.
    """
    return lambda function: Kernel(function, signature, variant)


def factory(
    arguments: Callable[[], Iterable[tuple[Any, ...]]],
) -> Callable[[Callable[..., Kernel]], Callable[..., Kernel]]:
    """Declare a function that makes one kernel for each tuple of arguments.

    Parameters
    ----------
    arguments : callable
        Returns all tuples of arguments that any codec uses, so that `kernels` lists all variants.
    """

    def decorate(function: Callable[..., Kernel]) -> Callable[..., Kernel]:
        cached = functools.cache(function)
        _FACTORIES.append((cached, arguments))
        return cached

    return decorate


def kernels() -> list[Kernel]:
    """Return all kernels of gcodec in all variants, compiled or not."""
    by_name: dict[str, Kernel] = {}
    for entry in pkgutil.walk_packages([str(KERNELS)], _PACKAGE):
        if entry.name.endswith("_cuda"):
            continue
        module = importlib.import_module(entry.name)
        for value in vars(module).values():
            if isinstance(value, Kernel):
                by_name[value.name] = value
    for make, tuples in _FACTORIES:
        for arguments in tuples():
            variant = make(*arguments)
            by_name[variant.name] = variant
    return list(by_name.values())


def inline(function: Callable[..., Any]) -> Any:
    """Declare a helper that Numba inlines into the calling kernels and helpers."""
    return Inline(function)


def subroutine(variant: str) -> Callable[[Callable[..., Any]], Any]:
    """Declare a helper with loops of its own, whose inlining would make compilation slow.

    For `variant`, see `kernel`.
    """
    return lambda function: Subroutine(function, variant)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Declare an LLVM code generator that kernels call; see `numba.extending.intrinsic`."""
    return Intrinsic(function)


def _numba_type(word: str) -> Any:
    from numba.core import types as numba_types

    if word in _SCALARS:
        return getattr(numba_types, word)
    direction, _, array = word.partition(" ")
    assert direction in ("in", "out") and array.endswith("[]") and array[:-2] in _SCALARS, word
    element = getattr(numba_types, array[:-2])
    return numba_types.Array(element, 1, "C", readonly=direction == "in")


def _compiler() -> tuple[str, ...]:
    """Return the compiler settings that determine the machine code of all kernels."""
    import llvmlite
    from numba.core import config

    names = (
        *("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "LLVM_REFPRUNE_PASS", "LLVM_REFPRUNE_FLAGS"),
        *("BOUNDSCHECK", "DEBUGINFO_DEFAULT", "USING_SVML"),
    )
    settings = (f"{name}={getattr(config, name, None)}" for name in names)
    python = f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"
    return (python, f"llvmlite {llvmlite.__version__}", *settings)


def _cache(kernel: Kernel, directory: store.Directory) -> Any:
    """Return the cache through which a dispatcher loads and saves a kernel's machine code."""
    from numba.core import caching, compiler, serialize

    class Cache(caching.NullCache):
        cache_path = directory.path

        # A full disk or a damaged file must cause a compilation, not an error.
        def load_overload(self, sig: Any, target_context: Any) -> Any:
            target_context.refresh()
            identity = kernel.identity(target_context.codegen())
            try:
                data = directory.read(store.file_name(kernel.name, identity))
                if (payload := store.unsealed(identity, data)) is None:
                    return None
                parts = pickle.loads(payload)
                return compiler.CompileResult._rebuild(target_context, *parts)
            except Exception:  # data of another version of Numba may raise any error
                return None

        def save_overload(self, sig: Any, cres: Any) -> None:
            if cres.lifted or cres.library.has_dynamic_globals:
                return  # the code contains addresses of this process
            identity = kernel.identity(cres.codegen)
            contents = store.sealed(identity, serialize.dumps(cres._reduce()))
            with contextlib.suppress(OSError):
                directory.write(store.file_name(kernel.name, identity), contents)

    return Cache()
