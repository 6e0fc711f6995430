"""The one place that compiles: ``@kernel`` and ``@inline`` for loops, ``@intrinsic`` for LLVM.

Nothing is imported or compiled before the first call. Every kernel has one explicit signature,
runs without the GIL, never with fastmath, and is cached on disk in a file of its own (see
`gcodec.runtime.store`) under a *build id*: the hash of all kernel sources, of Numba's version and
of the checked flag. Numba's own cache is not used. Its key does not see a change in a helper
function of another file or in the bounds-check setting, and would run stale code; and it unpickles
whatever its files contain.
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
    """Whether kernels are built with bounds checks (``GCODEC_CHECKED=1``)."""
    return os.environ.get("GCODEC_CHECKED", "") not in ("", "0")


@functools.lru_cache(maxsize=1)
def build_id() -> str:
    """Hash of everything that decides the machine code of any kernel, as 32 hex digits."""
    import numba

    digest = hashlib.blake2b(f"{numba.__version__} {checked()}".encode(), digest_size=16)
    for folder in (RUNTIME, KERNELS):
        for source in sorted(folder.rglob("*.py")):
            name = source.relative_to(folder.parent).as_posix()
            digest.update(name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def cache_location() -> Path:
    """Directory where the compiled kernels belong, whether it exists or not.

    Raises
    ------
    OSError
        If the user has no home directory.
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
    """Directory of the compiled kernels, made if need be; None where caching is not safe.

    Its files are run, so a directory that others could write to or exchange is not used; see
    `gcodec.runtime.store`.
    """
    try:
        with store.opened(cache_location()) as directory:
            return Path(directory.path)
    except OSError:
        return None


def cache_fault() -> str:
    """Return a sentence about why kernels cannot be kept; empty if they can."""
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
    """Return a sentence about why no kernel can be compiled; empty if kernels can be."""
    from numba.core import config

    if not getattr(config, "DISABLE_JIT", 0):
        return ""
    return (
        "Numba's compiler is disabled, and gcodec cannot run without it: unset the environment "
        "variable NUMBA_DISABLE_JIT, and start Python again."
    )


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
        module = self.function.__module__.rpartition(".")[2]
        where = f"{module}.{self.function.__qualname__}".replace(".<locals>", "")
        return f"{where} {self.variant}".strip()

    @property
    def cached(self) -> bool:
        """Whether its machine code for this processor is on disk, undamaged."""
        from numba.core.registry import cpu_target

        identity = self.identity(cpu_target.target_context.codegen())
        try:
            with store.opened(cache_location()) as directory:
                data = directory.read(store.file_name(self.name, identity))
        except OSError:
            return False
        return store.unsealed(identity, data) is not None

    def identity(self, codegen: Any) -> bytes:
        """Return everything that decides the machine code of this kernel.

        Parameters
        ----------
        codegen : numba.core.codegen.Codegen
            What generates the code, and knows for which processor.
        """
        kernel = (build_id(), self.name, self.signature)
        return repr((*kernel, *_compiler(), codegen.magic_tuple())).encode()

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
        with contextlib.ExitStack() as stack:
            # The build id knows the sources of gcodec's own kernels, and of no others.
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
    for entry in pkgutil.walk_packages([str(KERNELS)], _PACKAGE):
        if entry.name.endswith("_cuda"):
            continue
        module = importlib.import_module(entry.name)
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


def _compiler() -> tuple[str, ...]:
    """Return the compiler settings that decide the machine code of all kernels."""
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
    """Make what a dispatcher asks for the machine code of a kernel, and gives it to."""
    from numba.core import caching, compiler, serialize

    class Cache(caching.NullCache):
        cache_path = directory.path

        # A cache is a convenience: a full disk or a damaged file means compiling, not failing.
        def load_overload(self, sig: Any, target_context: Any) -> Any:
            target_context.refresh()
            identity = kernel.identity(target_context.codegen())
            try:
                data = directory.read(store.file_name(kernel.name, identity))
                if (payload := store.unsealed(identity, data)) is None:
                    return None
                parts = pickle.loads(payload)
                return compiler.CompileResult._rebuild(target_context, *parts)
            except Exception:  # whatever another state of Numba may raise
                return None

        def save_overload(self, sig: Any, cres: Any) -> None:
            if cres.lifted or cres.library.has_dynamic_globals:
                return  # the code contains addresses of this process
            identity = kernel.identity(cres.codegen)
            contents = store.sealed(identity, serialize.dumps(cres._reduce()))
            with contextlib.suppress(OSError):
                directory.write(store.file_name(kernel.name, identity), contents)

    return Cache()
