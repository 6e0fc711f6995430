"""Kernels: ``@kernel`` and ``@inline`` declare loops, ``@intrinsic`` declares LLVM code.

Nothing is imported or compiled before the first call. Every kernel has one explicit signature and
runs without the GIL and without fastmath. Its machine code comes from a file where there is one,
and otherwise from the compiler; see `gcodec.runtime.kernel_cache`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import os
import pkgutil
import re
import threading
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gcodec.runtime.build_id import KERNELS
from gcodec.runtime.device import device_of, no_twin

_PACKAGE = "gcodec.kernels."
_LOCK = threading.RLock()
_FACTORIES: list[tuple[Any, Callable[[], Iterable[tuple[Any, ...]]]]] = []

if hasattr(os, "register_at_fork"):
    # A child has no other thread of its parent, which would go on compiling and release the lock.
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )


def checked() -> bool:
    """Return whether kernels contain bounds checks (``GCODEC_CHECKED=1``)."""
    return os.environ.get("GCODEC_CHECKED", "") not in ("", "0")


class _Lazy:
    """A function that Numba compiles at its first use.

    Attributes
    ----------
    function : function
        The function as written.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    @functools.cached_property
    def typeable(self) -> Any:
        """What stands for the function where Numba meets it."""
        raise NotImplementedError

    def callees(self) -> list[_Lazy]:
        """Return the lazy functions that the function names."""
        function = self.function
        assert isinstance(function, types.FunctionType)
        names = function.__code__.co_names
        named = (function.__globals__[name] for name in names if name in function.__globals__)
        cells = (cell.cell_contents for cell in function.__closure__ or ())
        return [each for each in (*named, *cells) if isinstance(each, _Lazy)]

    def kernels(self) -> list[Kernel]:
        """Return the kernels that the function calls, itself or through its helpers."""
        kernels: list[Kernel] = []
        for callee in self.callees():
            kernels += [callee] if isinstance(callee, Kernel) else callee.kernels()
        return list(dict.fromkeys(kernels))

    def bound(self) -> types.FunctionType:
        """Return a copy of the function in which each lazy name stands for what Numba can type."""
        function = self.function
        assert isinstance(function, types.FunctionType)
        names = dict(function.__globals__)
        for name in function.__code__.co_names:
            if name in names:
                names[name] = _typeable(names[name])
        closure = function.__closure__ or ()
        cells = tuple(types.CellType(_typeable(cell.cell_contents)) for cell in closure)
        code, defaults = function.__code__, function.__defaults__
        return types.FunctionType(code, names, function.__name__, defaults, cells)


def _typeable(value: Any) -> Any:
    return value.typeable if isinstance(value, _Lazy) else value


class Intrinsic(_Lazy):
    """A function ``(typing context, *argument types) -> (signature, code generator)``."""

    @functools.cached_property
    def typeable(self) -> Any:
        """The intrinsic, as Numba knows it."""
        from numba.extending import intrinsic as numba_intrinsic

        return numba_intrinsic(self.function)


class Subroutine(_Lazy):
    """A helper that is compiled once in a process; LLVM decides where to inline it."""

    inlined = False

    @functools.cached_property
    def typeable(self) -> Any:
        """The helper, as the functions that call it see it."""
        from gcodec.runtime.compiler import Helper

        return Helper(self.bound(), self.inlined)


class Inline(Subroutine):
    """A helper that is compiled once in a process, and inlined wherever it is called."""

    inlined = True


class Kernel(_Lazy):
    """A loop that is compiled for one signature at its first call; other loops may call it."""

    def __init__(
        self, function: Callable[..., Any], signature: str, variant: str, vectorized: bool = True
    ) -> None:
        super().__init__(function)
        assert variant or not function.__closure__, "kernels of a factory need a variant"
        assert signature.count(" ") < 64, "an array takes two of the 64 slots"
        self.signature = signature
        self.types = types_of(signature)
        self.variant = variant
        self.vectorized = vectorized
        self._run: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """Module, qualified name and variant, such as ``pack.packer.pack 3 True``."""
        module = self.function.__module__.rpartition(".")[2]
        qualified = f"{module}.{self.function.__qualname__}".replace(".<locals>", "")
        return f"{qualified} {self.variant}".strip()

    @property
    def symbol(self) -> str:
        """Name of the compiled function, under which other kernels call it."""
        digest = hashlib.blake2b(self.name.encode(), digest_size=12).hexdigest()
        return f"gcodec_{digest}"

    @functools.cached_property
    def typeable(self) -> Any:
        """The kernel, as the functions that call it see it."""
        from gcodec.runtime.compiler import Linked

        return Linked(self)

    @functools.cached_property
    def address(self) -> int:
        """Address of the compiled loop, for the kernels that call it by `calling`."""
        from gcodec.runtime import processor

        self.run  # noqa: B018
        return processor.binding().address_of_symbol(self.symbol)

    @property
    def is_shared(self) -> bool:
        """Whether files may contain the loop: the build id covers gcodec's own loops only."""
        return self.function.__module__.startswith(_PACKAGE)

    def __call__(self, *args: Any) -> Any:
        """Run the compiled loop; `args` must have exactly the declared types."""
        try:
            return (self._run or self.run)(*args)
        except TypeError:
            # An array on a device is the caller's mistake; any other mismatch is a bug of gcodec.
            if device_of(*args) is not None:
                raise no_twin(self.name) from None
            raise

    @property
    def run(self) -> Callable[..., Any]:
        """The compiled loop; the first access loads or compiles it."""
        if self._run is None:
            with _LOCK:
                if self._run is None:
                    from gcodec.runtime import kernel_cache

                    self._run = kernel_cache.function(self)
        return self._run


def kernel(
    signature: str, variant: str = "", vectorized: bool = True
) -> Callable[[Callable[..., Any]], Kernel]:
    """Declare a kernel.

    Parameters
    ----------
    signature : str
        Types of the parameters, separated by ``", "``: a scalar type such as ``float32``, or
        ``in float32[]`` (read-only array) or ``out float32[]`` (array that is written). Types in
        parentheses belong to one parameter, a tuple. Python passes the elements of the tuple one
        by one; kernels pass the tuple.
    variant : str
        Constants of a kernel that a factory makes. They distinguish it from its siblings.
    vectorized : bool
        Whether LLVM vectorizes and unrolls its loops. False makes compilation faster. It suits
        loops over at most a few thousand numbers, and loops that are written with vectors.
    """
    return lambda function: Kernel(function, signature, variant, vectorized)


def types_of(signature: str) -> list[str]:
    """Return the types of the values that Python passes for a signature; see `kernel`."""
    return signature.translate({ord("("): None, ord(")"): None}).split(", ")


def grouped(signature: str, values: Iterable[Any]) -> list[Any]:
    """Return values, one for each of `types_of`, with those in parentheses joined in tuples."""
    rest = iter(values)
    return [
        tuple(next(rest) for _ in word.split(",")) if word[0] == "(" else next(rest)
        for word in re.findall(r"\([^)]*\)|[^,]+", signature.replace(", ", ","))
    ]


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


def inline(function: Callable[..., Any]) -> Inline:
    """Declare a helper that Numba inlines into the calling kernels and helpers."""
    return Inline(function)


def subroutine(function: Callable[..., Any]) -> Subroutine:
    """Declare a helper with loops of its own, whose inlining would make compilation slow."""
    return Subroutine(function)


def intrinsic(function: Callable[..., Any]) -> Intrinsic:
    """Declare an LLVM code generator that kernels call; see `numba.extending.intrinsic`."""
    return Intrinsic(function)


def named_intrinsic(function: Callable[..., Any], names: Sequence[str]) -> Intrinsic:
    """Declare an LLVM code generator (typing context, *argument types) of named arguments.

    Numba requires the names of the parameters, which a starred parameter hides.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in ("typing_context", *names)]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return intrinsic(function)


def calling(signature: str) -> Intrinsic:
    """Declare the call (address, *arguments) of a kernel that only an argument determines.

    A kernel that calls one of several others then needs no variant for each of them.

    Parameters
    ----------
    signature : str
        Types of the parameters of the kernel at the `address`, which is a uint64; see
        `Kernel.address`. The kernel returns nothing.
    """

    def call(typing_context: Any, *arguments: Any) -> Any:
        from numba.core import cgutils, types

        from gcodec.runtime.compiler import parameter_types

        kinds = parameter_types(signature)

        def code(context: Any, builder: Any, typed: Any, values: Any) -> Any:
            convention = context.call_conv
            kind = convention.get_function_type(types.none, kinds).as_pointer()
            loop = builder.inttoptr(values[0], kind)
            status, value = convention.call_function(builder, loop, types.none, kinds, values[1:])
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return value

        return types.void(types.uint64, *kinds), code

    count = len(grouped(signature, types_of(signature)))
    names = (f"argument{k}" for k in range(count))
    return named_intrinsic(call, ("address", *names))
