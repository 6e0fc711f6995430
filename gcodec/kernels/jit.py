"""The one place that compiles: ``@kernel`` and ``@inline`` for loops, ``@intrinsic`` for LLVM.

Nothing is imported or compiled before the first call. Every kernel has one explicit signature,
runs without the GIL, never with fastmath, and is cached on disk under a *build id*: the hash of
all kernel sources, of Numba's version and of the checked flag. Numba's own key does not see a
change in a helper function of another file or in the bounds-check setting, and would run stale
code.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import pkgutil
import sys
import threading
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gcodec.kernels.device import device_of, no_twin

_SCALARS = (
    *("float32", "float64", "boolean"),
    *("uint8", "uint16", "uint32", "uint64", "int32", "int64"),
)
_HOME = __name__.removesuffix("jit")
_LOCK = threading.RLock()
_FACTORIES: list[tuple[Any, Callable[[], Iterable[tuple[Any, ...]]]]] = []


def checked() -> bool:
    """Whether kernels are built with bounds checks (``GCODEC_CHECKED=1``)."""
    return os.environ.get("GCODEC_CHECKED", "") not in ("", "0")


@functools.lru_cache(maxsize=1)
def build_id() -> str:
    """Hash of everything that decides the machine code of any kernel, as 32 hex digits."""
    import numba

    digest = hashlib.blake2b(f"{numba.__version__} {checked()}".encode(), digest_size=16)
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def cache_directory() -> Path | None:
    """Directory of the compiled kernels, made if need be; None where caching is not safe.

    ``GCODEC_CACHE_DIR`` overrides the user's cache directory. The files are pickles, so a
    directory that others can write to is not used.
    """
    try:
        if override := os.environ.get("GCODEC_CACHE_DIR"):
            root = Path(override)
        elif sys.platform == "win32":
            root = Path(os.environ["LOCALAPPDATA"]) / "gcodec" / "Cache"
        elif sys.platform == "darwin":
            root = Path.home() / "Library" / "Caches" / "gcodec"
        else:
            root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gcodec"
        path = root / f"kernels-{build_id()}"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sys.platform != "win32":
            status = path.stat()
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return None
        return path if os.access(path, os.W_OK) else None
    except (OSError, KeyError, RuntimeError):  # no home, no permission, no such drive
        return None


class _Lazy:
    """Something that becomes a Numba object when it is first needed."""

    def __init__(self, function: Callable[..., Any], variant: str = "") -> None:
        self.function = function
        self.variant = variant
        self.__doc__ = function.__doc__
        self._built: Any = None

    @property
    def built(self) -> Any:
        """What Numba made of it; made now if this is the first use."""
        if self._built is None:
            with _LOCK:
                if self._built is None:
                    self._built = self._build()
        return self._built

    def _build(self) -> Any:
        raise NotImplementedError

    def _bound(self) -> types.FunctionType:
        """Copy the function with the lazy names that it uses replaced by what they build."""
        function = self.function
        assert isinstance(function, types.FunctionType)
        names = dict(function.__globals__)
        for name in function.__code__.co_names:
            if name in names:
                names[name] = _built(names[name])
        cells = (types.CellType(_built(c.cell_contents)) for c in function.__closure__ or ())
        return self._renamed(names, tuple(cells))

    def _renamed(self, names: dict[str, Any], closure: Any) -> types.FunctionType:
        """Copy the function with a name of its own.

        Functions of one factory would share the name of their machine code: what one process
        cached for one of them could be run in another as that of its sibling.
        """
        function = self.function
        assert isinstance(function, types.FunctionType)
        code, defaults = function.__code__, function.__defaults__
        renamed = types.FunctionType(code, names, function.__name__, defaults, closure)
        digest = hashlib.blake2b(self.variant.encode(), digest_size=6).hexdigest()
        renamed.__qualname__ = function.__qualname__ + (f"_{digest}" if self.variant else "")
        renamed.__module__ = function.__module__
        return renamed

    def _njit(self, **options: Any) -> Any:
        import numba

        return numba.njit(boundscheck=checked(), error_model="numpy", **options)(self._bound())


def _built(value: Any) -> Any:
    return value.built if isinstance(value, _Lazy) else value


class Intrinsic(_Lazy):
    """A function ``(typing context, *argument types) -> (signature, code generator)``."""

    def _build(self) -> Any:
        from numba.extending import intrinsic as numba_intrinsic

        return numba_intrinsic(self.function)


class Inline(_Lazy):
    """A helper that is compiled into the kernels that call it."""

    def _build(self) -> Any:
        return self._njit(inline="always")


class Subroutine(_Lazy):
    """A helper that is compiled once, beside the kernel that calls it."""

    def _build(self) -> Any:
        return self._njit(nogil=True)


class Kernel(_Lazy):
    """A loop compiled for one signature on its first call."""

    def __init__(self, function: Callable[..., Any], signature: str, variant: str) -> None:
        super().__init__(function, variant)
        assert variant or not function.__closure__, "kernels of a factory need a variant"
        self.signature = signature

    @property
    def name(self) -> str:
        """Where it is declared and which variant it is, such as ``pack.packer.pack 3 True``."""
        where = f"{self.function.__module__}.{self.function.__qualname__}"
        return f"{where.removeprefix(_HOME).replace('.<locals>', '')} {self.variant}".strip()

    @property
    def cached(self) -> bool:
        """Whether its machine code is on disk, or seems to be: it is not read."""
        from numba.core.registry import cpu_target

        directory = cache_directory()
        if directory is None:
            return False
        function = self._renamed(self.function.__globals__, self.function.__closure__)
        cache = _cache(function, directory, self.variant)
        codegen = cpu_target.target_context.codegen()
        try:
            file = cache._cache_file
            found = file._load_index()[cache._index_key(self._types(), codegen)]
            return Path(file._data_path(found)).stat().st_size > 0
        except Exception:  # there is none, or whatever unpickling damaged bytes may raise
            return False

    def __call__(self, *args: Any) -> Any:
        """Run the compiled loop; `args` must have exactly the declared types."""
        try:
            return (self._built or self.built)(*args)
        except TypeError:
            # Of arguments that no kernel takes, a device's arrays alone are no mistake of ours.
            if device_of(*args) is not None:
                raise no_twin(self.name) from None
            raise

    def _build(self) -> Any:
        dispatcher = self._njit(nogil=True)
        directory = cache_directory()
        if directory is not None:
            with contextlib.suppress(OSError, RuntimeError):
                dispatcher._cache = _cache(dispatcher.py_func, directory, self.variant)
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
        One word per argument, separated by ``", "``: a scalar type such as ``float32``, or
        ``in float32[]`` (read-only array) or ``out float32[]`` (array that is written).
    variant : str
        Tells the kernels apart that one function makes for several constants.
    """
    return lambda function: Kernel(function, signature, variant)


def factory(
    arguments: Callable[[], Iterable[tuple[Any, ...]]],
) -> Callable[[Callable[..., Kernel]], Callable[..., Kernel]]:
    """Declare a function that makes a kernel for each of its arguments, once.

    Parameters
    ----------
    arguments : callable
        Returns all arguments with which any codec calls it: so `kernels` knows every variant.
    """

    def decorate(function: Callable[..., Kernel]) -> Callable[..., Kernel]:
        cached = functools.cache(function)
        _FACTORIES.append((cached, arguments))
        return cached

    return decorate


def kernels() -> list[Kernel]:
    """Return all kernels there are, of every variant, compiled or not."""
    found: dict[str, Kernel] = {}
    for entry in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(_HOME + entry.name)
        for value in vars(module).values():
            if isinstance(value, Kernel):
                found[value.name] = value
    for make, arguments in _FACTORIES:
        for chosen in arguments():
            made = make(*chosen)
            found[made.name] = made
    return list(found.values())


def inline(function: Callable[..., Any]) -> Any:
    """Declare a helper that kernels and other helpers call; it is compiled into them."""
    return Inline(function)


def subroutine(variant: str) -> Callable[[Callable[..., Any]], Any]:
    """Declare a helper with loops of its own: inlining it would make compiling slow.

    `variant` is as for `kernel`.
    """
    return lambda function: Subroutine(function, variant)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Declare LLVM code that kernels call; see `numba.extending.intrinsic`."""
    return Intrinsic(function)


def _numba_type(word: str) -> Any:
    from numba.core import types as numba_types

    if word in _SCALARS:
        return getattr(numba_types, word)
    direction, _, array = word.partition(" ")
    assert direction in ("in", "out") and array.endswith("[]") and array[:-2] in _SCALARS, word
    element = getattr(numba_types, array[:-2])
    return numba_types.Array(element, 1, "C", readonly=direction == "in")


def _cache(function: Any, directory: Path, variant: str) -> Any:
    """Make what loads and saves the code of a function, keyed by build id and variant."""
    from numba.core import caching

    class Locator(caching._CacheLocator):
        def get_cache_path(self) -> str:
            return str(directory)

        def get_source_stamp(self) -> str:
            return build_id()

        def get_disambiguator(self) -> str:
            return "gcodec"

        @classmethod
        def from_function(cls, py_func: Any, py_file: Any) -> Any:
            return cls()

    class Files(caching.CompileResultCacheImpl):
        _locator_classes = [Locator]  # type: ignore[list-item]  # noqa: RUF012

    class Cache(caching.FunctionCache):
        _impl_class = Files

        def _index_key(self, sig: Any, codegen: Any) -> Any:
            # Numba would add a hash of the closure, which holds objects new in each process.
            return (build_id(), variant, sig, codegen.magic_tuple())

        # A cache is a convenience: a full disk or a damaged file means compiling, not failing.
        def load_overload(self, sig: Any, target_context: Any) -> Any:
            try:
                return super().load_overload(sig, target_context)
            except Exception:  # whatever unpickling damaged bytes may raise
                with contextlib.suppress(OSError):
                    self.flush()
                return None

        def save_overload(self, sig: Any, data: Any) -> None:
            with contextlib.suppress(OSError):
                super().save_overload(sig, data)

    return Cache(function)
