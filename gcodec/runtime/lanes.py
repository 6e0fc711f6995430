"""LLVM IR of blocks: vectors of 32 elements.

LLVM's loop vectorizer narrows the masks of eight float32 lanes at a time. Without AVX-512, this
costs more than the arithmetic. The vectorizer also emits neither prefetches nor streaming stores.
The hot loops therefore call blocks: a block is one vector of 32 lanes, whose masks become codes in
one step. A block checks no index; the surrounding loop keeps it inside its arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from gcodec.runtime import processor
from gcodec.runtime.jit import intrinsic, named_intrinsic
from gcodec.runtime.memory import LINE, emit_prefetch

if TYPE_CHECKING:
    from llvmlite import ir

    from gcodec.runtime.jit import Intrinsic

Builder: TypeAlias = "ir.IRBuilder"
"""Appends instructions to the generated code."""
Value: TypeAlias = "ir.Value"
"""What a generated instruction computes, or a constant of the generated code."""
ValueType: TypeAlias = "ir.Type"
"""The type of a `Value`."""

BLOCK = 32  # elements
ROUNDED = ("float32", "bfloat16", "float16")  # dtypes to which `Emitter.rounded` rounds lanes
SIGN = 0x80000000  # sign bit of a float32
AHEAD = 768  # float32 elements, 3 KiB, between a block and the block that it prefetches
STREAMED = 16  # alignment in bytes of streaming stores, which all arrays of NumPy have
WRITE, ADD, STREAM = 0, 1, 2
"""What becomes of decoded values; see `Emitter.store_as`. `store & ADD` needs no alignment."""
_PERMUTE = "llvm.x86.avx512.permvar.qi.512"
_ONE_TABLE = "llvm.x86.avx2.permps"
_TWO_TABLES = "llvm.x86.avx512.vpermi2var.ps.512"
_ONE_OF_FOUR = "llvm.x86.avx.vpermilvar.ps.256"


def block(*names: str, apart: bool = False) -> Callable[[Callable[[Emitter], None]], Intrinsic]:
    """Declare a block: a function of the named arguments that kernels call.

    The decorated function emits the code of the block through an `Emitter`. The code is inlined
    into the kernel; or, with `apart`, it is a separate function, whose loop can use all registers.
    """

    def decorate(generate: Callable[[Emitter], None]) -> Intrinsic:
        def typed(typing_context: Any, *arguments: Any) -> Any:
            from numba.core import types

            from gcodec.runtime import lowering

            def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                values = [
                    lowering.data_of(builder, value) if isinstance(kind, types.Array) else value
                    for kind, value in zip(signature.args, args, strict=True)
                ]
                inner = _function(builder, generate.__name__, values) if apart else builder
                parameters = inner.function.args if apart else values
                generate(Emitter(inner, dict(zip(names, parameters, strict=True))))
                if apart:
                    inner.ret_void()
                    builder.call(inner.function, values)
                return context.get_dummy_value()

            return types.void(*arguments), code

        typed.__name__ = generate.__name__
        typed.__doc__ = generate.__doc__
        return named_intrinsic(typed, names)

    return decorate


def _function(builder: Builder, name: str, values: list[Value]) -> Builder:
    """Return the builder of a new function with parameters like `values`, never inlined."""
    from llvmlite import ir

    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    function = ir.Function(builder.module, kind, builder.module.get_unique_name(name))
    function.linkage = "internal"
    function.attributes.add("noinline")
    return ir.IRBuilder(function.append_basic_block("entry"))


class Emitter:
    """Emits the IR of one block.

    Attributes
    ----------
    builder : llvmlite.ir.IRBuilder
    args : dict
        Values of the arguments, by name; for an array, the address of its first element.
    """

    def __init__(self, builder: Builder, args: dict[str, Value]) -> None:
        self.builder = builder
        self.args = args

    def address(self, array: str, index: str) -> Value:
        """Emit the address of the element of an array argument at an index argument."""
        return self.builder.gep(self.args[array], [self.args[index]])

    def element(self, pointer: Value, ahead: int) -> Value:
        """Emit the address `ahead` elements after a pointer."""
        return self.builder.gep(pointer, [integer(32)(ahead)])

    def splat(self, value: Value, count: int = BLOCK) -> Value:
        """Emit a vector whose lanes all have one value."""
        from llvmlite import ir

        kind = ir.VectorType(value.type, count)
        first = self.builder.insert_element(kind(ir.Undefined), value, integer(32)(0))
        return self.picked(first, [0] * count)

    def filled(self, kind: ValueType, values: Iterable[Value]) -> Value:
        """Emit the vector of some values, as many as it has lanes."""
        from llvmlite import ir

        vector = kind(ir.Undefined)
        for k, value in enumerate(values):
            vector = self.builder.insert_element(vector, value, integer(32)(k))
        return vector

    def picked(self, vector: Value, places: Sequence[int]) -> Value:
        """Emit the vector of the lanes at some places of another one."""
        order = lanes(32, len(places))([*places])
        return self.builder.shuffle_vector(vector, vector, order)

    def bytes_of(self, elements: Value, shift: Value) -> Value:
        """Emit the vector of the bytes of integers from a bit on, given as an integer of 64."""
        builder, nbits = self.builder, elements.type.element.width
        by = shift if nbits == 64 else builder.trunc(shift, integer(nbits))
        count = elements.type.count
        shifted = builder.lshr(elements, self.splat(by, count))
        return builder.trunc(shifted, lanes(8, count)) if nbits > 8 else shifted

    def load(self, pointer: Value, kind: ValueType, align: int = 4) -> Value:
        """Emit the load of a vector."""
        return self.builder.load(self.builder.bitcast(pointer, kind.as_pointer()), align=align)

    def store(self, value: Value, pointer: Value, align: int = 4, streaming: bool = False) -> None:
        """Emit the store of a vector; a streaming store bypasses the cache.

        Its pointer is a multiple of `STREAMED` bytes, in place of `align` bytes.
        """
        builder = self.builder
        if not streaming:
            target = builder.bitcast(pointer, value.type.as_pointer())
            builder.store(value, target, align=align)
            return
        # LLVM would alternate between cache lines, which a processor may then write in pieces.
        count = min(8 * LINE // getattr(value.type.element, "width", 32), value.type.count)
        one = builder.module.add_metadata([integer(32)(1)])
        for k, line in enumerate(self.parts(value, count)):
            place = builder.bitcast(pointer, line.type.as_pointer())
            place = self.element(place, k)
            builder.store(line, place, align=STREAMED).set_metadata("nontemporal", one)
            self.in_order()

    def store_as(self, values: Value, pointer: Value) -> None:
        """Emit the store of decoded values, for which a kernel has the arguments "store", "scale".

        `WRITE` stores them, `STREAM` stores them past the cache, to a multiple of `STREAMED`
        bytes, and `ADD` adds their products with the scale; each product is rounded before it is
        added.
        """
        builder, store = self.builder, self.args["store"]
        streams, adds = (
            builder.icmp_signed("==", store, store.type(kind)) for kind in (STREAM, ADD)
        )
        with builder.if_else(streams) as (past_cache, cached):
            with past_cache:
                self.store(values, pointer, streaming=True)
            with cached:
                self.fetch(pointer)
                with builder.if_else(adds) as (adding, writing):
                    with adding:
                        scaled = builder.fmul(self.splat(self.args["scale"]), values)
                        total = builder.fadd(self.load(pointer, values.type), scaled)
                        self.store(total, pointer)
                    with writing:
                        self.store(values, pointer)

    def rounded(self, values: Value) -> Value:
        """Emit float32 lanes, rounded to the dtype that the argument "rounded_to" is the index of.

        See `ROUNDED`. No lane may be NaN, which could become another NaN or a zero.
        """
        from llvmlite import ir

        builder, word, index = self.builder, lanes(32, values.type.count), self.args["rounded_to"]

        def constant(number: int) -> Value:
            return word([number] * word.count)

        def is_index(name: str) -> Value:
            return builder.icmp_signed("==", index, index.type(ROUNDED.index(name)))

        before = builder.block
        with builder.if_then(builder.not_(is_index("float32")), likely=False):
            bits = builder.bitcast(values, word)
            odd = builder.and_(builder.lshr(bits, constant(16)), constant(1))
            total = builder.add(bits, builder.add(odd, constant(0x7FFF)))
            nearest = builder.bitcast(builder.and_(total, constant(-0x10000)), values.type)
            if can_round("float16"):
                half = builder.fptrunc(values, ir.VectorType(ir.HalfType(), word.count))
                half = builder.fpext(half, values.type)
                nearest = builder.select(is_index("float16"), half, nearest)
            inside = builder.block
        result = builder.phi(values.type)
        result.add_incoming(values, before)
        result.add_incoming(nearest, inside)
        return result

    def rotated(self, words: Value, count: int) -> Value:
        """Emit the rotation of 64-bit lanes to the right by `count` bits."""
        kind = words.type
        return self._call(
            f"llvm.fshr.v{kind.count}i64", kind, [words, words, kind([count] * kind.count)]
        )

    def larger(self, one: Value, other: Value) -> Value:
        """Emit the maxima of lanes of floats or signed integers; `other` if a float is NaN."""
        return self._chosen(">", one, other)

    def smaller(self, one: Value, other: Value) -> Value:
        """Emit the minima of lanes of floats or signed integers; `other` if a float is NaN."""
        return self._chosen("<", one, other)

    def _chosen(self, relation: str, one: Value, other: Value) -> Value:
        from llvmlite import ir

        is_integer = isinstance(one.type.element, ir.IntType)
        compared = self.builder.icmp_signed if is_integer else self.builder.fcmp_ordered
        return self.builder.select(compared(relation, one, other), one, other)

    def magnitude_bits(self, x: Value) -> Value:
        """Emit the bit patterns of the absolute values of float32 lanes."""
        bits = self.builder.bitcast(x, lanes(32, x.type.count))
        return self.builder.and_(bits, bits.type([SIGN - 1] * x.type.count))

    def looked_up(self, table: Value, places: Value) -> Value:
        """Emit the look-up of 64 bytes in a table of 64 bytes, at places below 64."""
        builder, kind = self.builder, places.type
        if compiles_for("avx512vbmi"):  # LLVM has no portable instruction for it
            return self._call(_PERMUTE, kind, [self.load(table, kind, 1), places])
        if compiles_for("avx2"):
            # In each half of a register, the shuffle selects one of 16 bytes by the lowest 4 bits
            # of a place. Both halves therefore get the same 16 bytes of the table.
            registers = [
                self.picked(
                    self.load(self.element(table, first), lanes(8, 16), 1), 2 * [*range(16)]
                )
                for first in range(0, 64, 16)
            ]
            looked_up = []
            for part in self.parts(places, 32):
                values = [self.x86("avx2.pshuf.b", part.type, [each, part]) for each in registers]
                looked_up.append(self._of_parts(values, part, 16))
            return self.joined(looked_up)
        indices = [
            builder.zext(builder.extract_element(places, integer(32)(k)), integer(64))
            for k in range(kind.count)
        ]
        return self.gathered(table, indices, kind)

    def looked_up_floats(self, table: Value, places: Value, entries: int = 0) -> Value:
        """Emit the look-up of 32 places in a table of `floats_in_registers()` float32.

        The table may have another power of two of `entries`: up to 32, and with AVX-512 up to 256.
        """
        if not floats_in_registers():
            return self.gathered(table, self.indices(places), floats(places.type.count))
        looked_up, wide = [], compiles_for("avx512f")
        count = 16 if wide else 8
        registers = [
            self.load(self.element(table, first), floats(count))
            for first in range(0, entries or floats_in_registers(), count)
        ]
        for part in self.parts(places, count):
            if wide:
                pairs = zip(registers[::2], registers[1::2], strict=True)
                values = [self._call(_TWO_TABLES, floats(count), [a, part, b]) for a, b in pairs]
            else:
                values = [self._call(_ONE_TABLE, floats(count), [t, part]) for t in registers]
            looked_up.append(self._of_parts(values, part, len(registers) * count // len(values)))
        return self.joined(looked_up)

    def _of_parts(self, values: list[Value], places: Value, size: int) -> Value:
        """Emit the look-up in a table, given those in its parts of `size` entries."""
        builder, kind = self.builder, places.type
        while len(values) > 1:
            masked = builder.and_(places, kind([size] * kind.count))
            is_low = builder.icmp_unsigned("==", masked, kind([0] * kind.count))
            halves = zip(values[::2], values[1::2], strict=True)
            values = [builder.select(is_low, low, high) for low, high in halves]
            size *= 2
        return values[0]

    def one_of_eight_at(self, pointer: Value, places: Value, *, repeats: bool = False) -> Value:
        """Emit the selection from 8 float32 in memory by 32-bit lanes below 8.

        The selection takes less time if the 8 numbers are two times 4, as `repeats` says.
        """
        builder = self.builder
        if compiles_for("avx2"):
            name = _ONE_OF_FOUR if repeats else _ONE_TABLE
            return self.permuted(self.load(pointer, floats(8)), places, name)
        count = places.type.count
        numbers = [self.splat(builder.load(self.element(pointer, k)), count) for k in range(8)]
        return self._of_parts(numbers, places, 1)

    def one_of_eight(self, values: list[float], places: Value) -> Value:
        """Emit the selection from 8 float32 constants by the lowest 3 bits of 32-bit lanes."""
        if compiles_for("avx2"):
            return self.permuted(floats(8)(values), places)
        kind = floats(places.type.count)
        return self._of_parts([kind([value] * kind.count) for value in values], places, 1)

    def permuted(self, table: Value, places: Value, name: str = _ONE_TABLE) -> Value:
        """Emit the selection from the float32 of a register by 32-bit lanes, for AVX2.

        LLVM has no portable instruction for it.
        """
        parts = self.parts(places, table.type.count)
        return self.joined([self._call(name, table.type, [table, part]) for part in parts])

    def parts(self, vector: Value, count: int) -> list[Value]:
        """Emit the parts of `count` lanes of a vector, in order."""
        firsts = range(0, vector.type.count, count)
        return [self.picked(vector, range(first, first + count)) for first in firsts]

    def joined(self, parts: list[Value]) -> Value:
        """Emit the vector of the lanes of equally long parts, whose number is a power of two."""
        while len(parts) > 1:
            count = 2 * parts[0].type.count
            order = lanes(32, count)([*range(count)])
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.builder.shuffle_vector(a, b, order) for a, b in pairs]
        return parts[0]

    def indices(self, places: Value) -> list[Value]:
        """Emit an even number of 32-bit lanes as a list of 64-bit words."""
        builder, word, words = self.builder, integer(64), []
        pairs = builder.bitcast(places, lanes(64, places.type.count // 2))
        for k in range(pairs.type.count):
            both = builder.extract_element(pairs, integer(32)(k))
            words += [builder.and_(both, word(0xFFFFFFFF)), builder.lshr(both, word(32))]
        return words

    def gathered(self, table: Value, indices: list[Value], kind: ValueType) -> Value:
        """Emit a vector of entries of a table; gather instructions would be no faster."""
        builder = self.builder
        return self.filled(kind, (builder.load(builder.gep(table, [at])) for at in indices))

    def one_of_four(self, values: list[Value], places: Value) -> Value:
        """Emit the selection from 4 float32 values by the lowest 2 bits of 32 lanes."""
        if not compiles_for("avx"):
            return self._of_parts([self.splat(value) for value in values], places, 1)
        return self.permuted(self.filled(floats(8), 2 * values), places, _ONE_OF_FOUR)

    def first_highest(self, mask: Value) -> Value:
        """Emit the bits of a mask; the first lane is the highest bit of the first byte."""
        # The bitcast makes the first lane the lowest bit.
        bits = self.builder.bitcast(mask, integer(mask.type.count))
        return self.builder.bswap(self.builder.bitreverse(bits))

    def fetch(self, pointer: Value, ahead: int | None = None, count: int = BLOCK) -> None:
        """Emit prefetches of the cache lines of `count` elements, `ahead` elements further on.

        By default, they are as many bytes further on as `AHEAD` float32 elements take.
        """
        nbits = getattr(pointer.type.pointee, "width", 32)  # a float32 has none
        first = 32 * AHEAD // nbits if ahead is None else ahead
        for line in range(first, first + count, 8 * LINE // nbits):
            emit_prefetch(self.builder, self.element(pointer, line))

    def fetched(self, pointer: Value, kind: ValueType, align: int = 4) -> Value:
        """Emit the load of a vector, and prefetches of later elements; see `load` and `fetch`."""
        self.fetch(pointer, count=kind.count)
        return self.load(pointer, kind, align)

    def loop(
        self,
        before: list[Value],
        going: Callable[[list[Value]], Value],
        body: Callable[[list[Value]], list[Value]],
    ) -> list[Value]:
        """Emit a loop over values, and return their final values.

        Parameters
        ----------
        before : list of values
            Initial values.
        going : callable
            Emits the condition for another iteration from the current values.
        body : callable
            Emits the next values from the current values.
        """
        builder, entry = self.builder, self.builder.block
        names = ("head", "body", "done")
        head, inside, done = (builder.append_basic_block(name) for name in names)
        builder.branch(head)
        builder.position_at_end(head)
        current = [builder.phi(value.type) for value in before]
        builder.cbranch(going(current), inside, done)
        builder.position_at_end(inside)
        for phi, first, following in zip(current, before, body(current), strict=True):
            phi.add_incoming(first, entry)
            phi.add_incoming(following, builder.block)
        builder.branch(head)
        builder.position_at_end(done)
        return current

    def count(
        self,
        first: Value,
        stop: Value,
        step: Value,
        before: list[Value],
        body: Callable[..., list[Value]],
    ) -> list[Value]:
        """Emit a loop that counts from `first` to below `stop`, and return the final values.

        `body` emits the next values from the count and the current values; see `loop`.
        """
        builder = self.builder

        def advance(current: list[Value]) -> list[Value]:
            following = body(*current)
            return [builder.add(current[0], step), *following]

        def going(current: list[Value]) -> Value:
            return builder.icmp_signed("<", current[0], stop)

        return self.loop([first, *before], going, advance)[1:]

    def in_order(self) -> None:
        """Emit a barrier that LLVM moves no memory access or prefetch across."""
        from llvmlite import ir

        nothing = ir.FunctionType(ir.VoidType(), [])
        self.builder.asm(nothing, "", "~{memory}", [], side_effect=True)

    def reduced(self, name: str, value: Value) -> Value:
        """Emit the reduction of a vector of integers to one number, by "smin" or "smax"."""
        kind = value.type
        intrinsic_name = f"llvm.vector.reduce.{name}.v{kind.count}i{kind.element.width}"
        return self._call(intrinsic_name, kind.element, [value])

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        """Emit a fused multiply-add of float32 vectors, as `words.fused` does."""
        return self._call(f"llvm.fma.v{a.type.count}f32", a.type, [a, b, c])

    def call(self, name: str, value: Value) -> Value:
        """Emit an LLVM intrinsic of one vector of float64, such as ``llvm.rint``."""
        return self._call(f"{name}.v{value.type.count}f64", value.type, [value])

    def x86(self, name: str, kind: ValueType, values: list[Value]) -> Value:
        """Emit an instruction of x86 without a portable equivalent, such as ``avx2.permps``."""
        return self._call(f"llvm.x86.{name}", kind, values)

    def _call(self, name: str, kind: ValueType, values: list[Value]) -> Value:
        """Emit a call of an LLVM intrinsic that returns a value of type `kind`."""
        from llvmlite import ir
        from numba.core import cgutils

        signature = ir.FunctionType(kind, [value.type for value in values])
        function = cgutils.get_or_insert_function(self.builder.module, signature, name)
        return self.builder.call(function, values)


def compiles_for(feature: str) -> bool:
    """Return whether kernels are compiled for processors with a feature, such as ``avx2``."""
    return processor.target().has(feature)


def can_round(dtype: str) -> bool:
    """Return whether kernels can round lanes to a dtype; see `Emitter.rounded`."""
    return dtype == "bfloat16" or (dtype == "float16" and compiles_for("f16c"))


def floats_in_registers() -> int:
    """Return the number of float32 that `Emitter.looked_up_floats` looks up in registers."""
    return 64 if compiles_for("avx512f") else 16 if compiles_for("avx2") else 0


def integer(bits: int) -> ValueType:
    """Return the type of an integer."""
    from llvmlite import ir

    return ir.IntType(bits)


def lanes(bits: int, count: int = BLOCK) -> ValueType:
    """Return the type of a vector of integers."""
    from llvmlite import ir

    return ir.VectorType(ir.IntType(bits), count)


def constants(kind: ValueType) -> Callable[[int], Value]:
    """Return a function that makes a vector of 32-bit lanes with one number."""
    return lambda value: kind([value & 0xFFFFFFFF] * kind.count)


def floats(count: int = BLOCK) -> ValueType:
    """Return the type of a vector of float32."""
    from llvmlite import ir

    return ir.VectorType(ir.FloatType(), count)


def doubles(count: int = BLOCK) -> ValueType:
    """Return the type of a vector of float64."""
    from llvmlite import ir

    return ir.VectorType(ir.DoubleType(), count)


@intrinsic
def fence(typing_context: Any) -> Any:
    """Make streamed values visible to the next reader of the result."""
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def is_aligned(typing_context: Any, array: Any) -> Any:
    """Return whether streaming stores can begin at the first element of an array."""
    from numba.core import types

    from gcodec.runtime import lowering

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = builder.ptrtoint(lowering.data_of(builder, args[0]), integer(64))
        rest = builder.and_(address, address.type(STREAMED - 1))
        return builder.icmp_unsigned("==", rest, rest.type(0))

    return types.boolean(array), generate
