"""Vector IR: what blocks of 32 elements are written with.

LLVM's loop vectoriser narrows the masks of eight float32 lanes at a time, which on hosts without
AVX-512 costs more than the arithmetic; it also never prefetches and never streams. So the hot
loops call blocks: each is one vector of 32 lanes, whose masks become codes in one go. A block
checks no index; the loop around it keeps every block inside its arrays.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from gcodec.runtime.jit import intrinsic
from gcodec.runtime.memory import emit_prefetch

BLOCK = 32  # elements
SIGN = 0x80000000  # of a float32
AHEAD = 256  # elements between a block and what is prefetched for a later one
_PERMUTE = "llvm.x86.avx512.permvar.qi.512"
_LINE = 16  # float32 elements in a cache line


def block(*names: str, apart: bool = False) -> Callable[[Callable[[Emitter], None]], Any]:
    """Declare a block: a function of the named arguments that kernels call.

    What is decorated emits its code, and may call the arguments by name; see `Emitter`. The code
    is a part of the kernel; or, if `apart`, a function of its own, so that all registers are free
    for the loop in it.
    """

    def decorate(generate: Callable[[Emitter], None]) -> Any:
        def typed(typing_context: Any, *arguments: Any) -> Any:
            from numba.core import types

            def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                values = [
                    context.make_array(kind)(context, builder, value).data
                    if isinstance(kind, types.Array)
                    else value
                    for kind, value in zip(signature.args, args, strict=True)
                ]
                inner = _function(builder, generate.__name__, values) if apart else builder
                inside = inner.function.args if apart else values
                generate(Emitter(inner, dict(zip(names, inside, strict=True))))
                if apart:
                    inner.ret_void()
                    builder.call(inner.function, values)
                return context.get_dummy_value()

            return types.void(*arguments), code

        # Numba asks for the names, which a starred argument hides.
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(name, kind) for name in ("typing_context", *names)]
        typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        typed.__name__ = generate.__name__
        typed.__doc__ = generate.__doc__
        return intrinsic(typed)

    return decorate


def _function(builder: Any, name: str, values: list[Any]) -> Any:
    """Begin a function that gets such values, and is never inlined; return its builder."""
    from llvmlite import ir

    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    made = ir.Function(builder.module, kind, builder.module.get_unique_name(name))
    made.linkage = "internal"
    made.attributes.add("noinline")
    return ir.IRBuilder(made.append_basic_block("entry"))


class Emitter:
    """Emits the IR of one block.

    Attributes
    ----------
    builder : llvmlite.ir.IRBuilder
    args : dict
        Values of the call's arguments, by name; of arrays, the address of the first element.
    """

    def __init__(self, builder: Any, args: dict[str, Any]) -> None:
        self.builder = builder
        self.args = args

    def address(self, array: str, index: str) -> Any:
        """Address of the element of an array argument at an index argument."""
        return self.builder.gep(self.args[array], [self.args[index]])

    def element(self, pointer: Any, ahead: int) -> Any:
        """Address of the element so many places behind another."""
        from llvmlite import ir

        return self.builder.gep(pointer, [ir.IntType(32)(ahead)])

    def splat(self, value: Any, count: int = BLOCK) -> Any:
        """All lanes of this value."""
        from llvmlite import ir

        kind = ir.VectorType(value.type, count)
        first = self.builder.insert_element(kind(ir.Undefined), value, ir.IntType(32)(0))
        return self.builder.shuffle_vector(first, first, lanes(32, count)([0] * count))

    def load(self, pointer: Any, kind: Any, align: int = 4) -> Any:
        """Load a vector."""
        return self.builder.load(self.builder.bitcast(pointer, kind.as_pointer()), align=align)

    def store(self, value: Any, pointer: Any, align: int = 4, streaming: bool = False) -> None:
        """Store a vector, or write it around the cache."""
        from llvmlite import ir

        builder = self.builder
        target = builder.bitcast(pointer, value.type.as_pointer())
        written = builder.store(value, target, align=align)
        if streaming:
            one = builder.module.add_metadata([ir.IntType(32)(1)])
            written.set_metadata("nontemporal", one)

    def store_as(self, store: str, values: Any, pointer: Any) -> None:
        """Store what a block decoded: "write" or "stream" it, or "add" it times the scale.

        Each product is rounded before it is added.
        """
        if store == "stream":
            self.store(values, pointer, align=32, streaming=True)
            return
        self.fetch(pointer)
        if store == "add":
            scaled = self.builder.fmul(self.splat(self.args["scale"]), values)
            values = self.builder.fadd(self.load(pointer, values.type), scaled)
        self.store(values, pointer)

    def magnitude_bits(self, x: Any) -> Any:
        """Bits of the absolute values of float32 lanes."""
        bits = self.builder.bitcast(x, lanes(32, x.type.count))
        return self.builder.and_(bits, bits.type([SIGN - 1] * x.type.count))

    def looked_up(self, table: Any, places: Any) -> Any:
        """Load the bytes of a table of 64 that are at these 64 places, all below 64."""
        from llvmlite import ir
        from numba.core import cgutils

        builder, kind = self.builder, places.type
        if compiles_for("avx512vbmi"):  # one instruction; LLVM has none that does it everywhere
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(kind, [kind, kind]), _PERMUTE
            )
            return builder.call(function, [self.load(table, kind, 1), places])
        found, number = kind(ir.Undefined), ir.IntType(32)
        for k in range(kind.count):
            place = builder.zext(builder.extract_element(places, number(k)), ir.IntType(64))
            byte = builder.load(builder.gep(table, [place]))
            found = builder.insert_element(found, byte, number(k))
        return found

    def indices(self, places: Any) -> list[Any]:
        """Lanes of 32 bits, of which there are an even number, as words of 64."""
        from llvmlite import ir

        builder, word, found = self.builder, ir.IntType(64), []
        pairs = builder.bitcast(places, lanes(64, places.type.count // 2))
        for k in range(pairs.type.count):
            both = builder.extract_element(pairs, ir.IntType(32)(k))
            found += [builder.and_(both, word(0xFFFFFFFF)), builder.lshr(both, word(32))]
        return found

    def gathered(self, table: Any, indices: list[Any], kind: Any) -> Any:
        """Load the vector of entries of a table; instructions that gather are no faster."""
        from llvmlite import ir

        builder, found = self.builder, kind(ir.Undefined)
        for k, index in enumerate(indices):
            entry = builder.load(builder.gep(table, [index]))
            found = builder.insert_element(found, entry, ir.IntType(32)(k))
        return found

    def first_highest(self, mask: Any) -> Any:
        """Bits of a mask, its first lane the highest bit of the first byte."""
        from llvmlite import ir

        # The bitcast makes the first lane the lowest bit.
        bits = self.builder.bitcast(mask, ir.IntType(mask.type.count))
        return self.builder.bswap(self.builder.bitreverse(bits))

    def fetch(self, pointer: Any, ahead: int = AHEAD) -> None:
        """Ask for the cache lines of the float32 elements of a later block."""
        for line in range(ahead, ahead + BLOCK, _LINE):
            emit_prefetch(self.builder, self.element(pointer, line))

    def loop(
        self,
        before: list[Any],
        going: Callable[[list[Any]], Any],
        body: Callable[[list[Any]], list[Any]],
    ) -> list[Any]:
        """Loop over values, and return those that it ends with."""
        builder, begun = self.builder, self.builder.block
        names = ("head", "body", "done")
        head, inside, done = (builder.append_basic_block(name) for name in names)
        builder.branch(head)
        builder.position_at_end(head)
        held = [builder.phi(value.type) for value in before]
        builder.cbranch(going(held), inside, done)
        builder.position_at_end(inside)
        for phi, one, two in zip(held, before, body(held), strict=True):
            phi.add_incoming(one, begun)
            phi.add_incoming(two, builder.block)
        builder.branch(head)
        builder.position_at_end(done)
        return held

    def in_order(self) -> None:
        """Keep memory accesses, prefetches too, on their side of this place."""
        from llvmlite import ir

        nothing = ir.FunctionType(ir.VoidType(), [])
        self.builder.asm(nothing, "", "~{memory}", [], side_effect=True)

    def reduced(self, name: str, value: Any) -> Any:
        """Reduce a vector of integers to one number, by "smin" or "smax"."""
        from llvmlite import ir
        from numba.core import cgutils

        kind = value.type
        function = cgutils.get_or_insert_function(
            self.builder.module,
            ir.FunctionType(kind.element, [kind]),
            f"llvm.vector.reduce.{name}.v{kind.count}i{kind.element.width}",
        )
        return self.builder.call(function, [value])

    def fused(self, a: Any, b: Any, c: Any) -> Any:
        """Multiply and add vectors of float32 with one rounding, as `words.fused` does."""
        from llvmlite import ir
        from numba.core import cgutils

        kind = a.type
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.fma.v{kind.count}f32"
        )
        return self.builder.call(function, [a, b, c])

    def call(self, name: str, value: Any) -> Any:
        """Call an LLVM intrinsic of one vector of float64, such as ``llvm.rint``."""
        from llvmlite import ir
        from numba.core import cgutils

        kind = value.type
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(kind, [kind]), f"{name}.v{kind.count}f64"
        )
        return self.builder.call(function, [value])


@functools.cache
def compiles_for(feature: str) -> bool:
    """Whether kernels are compiled for processors with a feature, such as ``avx2``."""
    from numba.core.registry import cpu_target

    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return f"+{feature}" in features.split(",")


def lanes(bits: int, count: int = BLOCK) -> Any:
    """Vector of integers."""
    from llvmlite import ir

    return ir.VectorType(ir.IntType(bits), count)


def floats(count: int = BLOCK) -> Any:
    """Vector of float32."""
    from llvmlite import ir

    return ir.VectorType(ir.FloatType(), count)


def doubles(count: int = BLOCK) -> Any:
    """Vector of float64."""
    from llvmlite import ir

    return ir.VectorType(ir.DoubleType(), count)


@intrinsic
def fence(typing_context: Any) -> Any:
    """Make streamed values visible to whoever reads the result next."""
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate
