"""Lowering: the LLVM IR of a typed function, in fewer instructions than Numba's.

Numba keeps arrays, ranges and iterators in memory, which LLVM then replaces with registers. More
than a tenth of the time of a compilation would go to writing, reading and removing these
instructions. Here the common operations use registers from the start. The machine code of most
kernels is the same to the bit.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.core import cgutils, lowering
from numba.core import ir as numba_ir
from numba.core import types as numba_types
from numba.cpython.builtins import do_minmax

types: Any = numba_types  # whose classes its annotations hide

_SIZE, _DATA, _SHAPE = 2, 4, 5  # members of Numba's array
_LAST = 2**63 - 1  # where a slice without an end stops


def data_type(kind: Any) -> Any:
    """Return the type in LLVM of the address of the first element of an array."""
    return kind.elements[_DATA]


def array_of(kind: Any, builder: Any, data: Any, size: Any, itemsize: Any) -> Any:
    """Emit an array of one dimension; `kind` is its type in LLVM."""
    pair = kind.elements[_SHAPE]
    shape, strides = (builder.insert_value(pair(ir.Undefined), n, 0) for n in (size, itemsize))
    nothing = kind.elements[0](None)
    members = [nothing, nothing, size, itemsize, data, shape, strides]
    return cgutils.make_anonymous_struct(builder, members, kind)


def data_of(builder: Any, array: Any) -> Any:
    """Emit the address of the first element of an array."""
    return builder.extract_value(array, _DATA)


def size_of(builder: Any, array: Any) -> Any:
    """Emit the number of elements of an array of one dimension."""
    return builder.extract_value(array, _SIZE)


def is_choice(function: Any, kinds: Any) -> bool:
    """Return whether a call is `min` or `max` of several numbers."""
    called = getattr(function, "typing_key", None)
    return (
        (called is min or called is max)
        and len(kinds) > 1
        and all(isinstance(kind, types.Number) for kind in kinds)
    )


class Lower(lowering.Lower):
    """Numba's lowering without reference counts and notes for debuggers, which kernels lack."""

    def lower_inst(self, inst: Any) -> None:
        """Lower a statement."""
        if isinstance(inst, numba_ir.Assign):
            value = self.lower_assign(self.typeof(inst.target.name), inst)
            self.storevar(value, inst.target.name)
        else:
            super().lower_inst(inst)

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        """Assign a value to a variable."""
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:
        """Emit the memory of a variable."""
        return cgutils.alloca_once(self.builder, lltype, name=name)

    def lower_expr(self, resty: Any, expr: Any) -> Any:
        """Lower an expression."""
        if expr.op in ("pair_first", "pair_second"):
            member = ("pair_first", "pair_second").index(expr.op)
            return self.builder.extract_value(self.loadvar(expr.value.name), member)
        if expr.op in ("getattr", "getiter", "iternext"):
            kind = self.typeof(expr.value.name)
            if expr.op == "getattr" and expr.attr == "size" and isinstance(kind, types.Array):
                return size_of(self.builder, self.loadvar(expr.value.name))
            if expr.op == "getiter" and isinstance(kind, types.RangeType):
                return self._range_iterator(self.loadvar(expr.value.name))
            if expr.op == "iternext" and isinstance(kind, types.RangeIteratorType):
                return self._next_of_range(self.loadvar(expr.value.name), resty)
        return super().lower_expr(resty, expr)

    def _lower_call_normal(self, fnty: Any, expr: Any, signature: Any) -> Any:
        called, word = getattr(fnty, "typing_key", None), ir.IntType(64)
        if is_choice(fnty, signature.args):
            values = self.fold_call_args(fnty, signature, expr.args, expr.vararg, expr.kws)
            return self._choice(called, signature, values)
        if called is not range and (called is not slice or signature.return_type.has_step):
            return super()._lower_call_normal(fnty, expr, signature)
        values = self.fold_call_args(fnty, signature, expr.args, expr.vararg, expr.kws)
        kinds = signature.args
        if len(values) == 1:
            values, kinds = [values[0].type(0), *values], [*kinds, *kinds]
        if called is slice:
            omitted = [kind is types.none for kind in kinds]
            values = [
                word(default) if is_omitted else value
                for default, is_omitted, value in zip((0, _LAST), omitted, values, strict=True)
            ]
        values = [*values, values[0].type(1)][:3]  # the step is 1 by default
        return cgutils.make_anonymous_struct(self.builder, values)

    def _choice(self, called: Any, signature: Any, values: Any) -> Any:
        """Emit the call of a function that returns the least or the largest of some numbers.

        LLVM inlines it late. Comparisons that it sees from the start become slower loops.
        """
        module, kinds = self.builder.module, [value.type for value in values]
        name = f"{called.__name__} {signature}"
        if name not in module.globals:
            returned = self.context.get_value_type(signature.return_type)
            function = ir.Function(module, ir.FunctionType(returned, kinds), name)
            function.linkage = "internal"
            builder = ir.IRBuilder(function.append_basic_block())
            precedes = operator.lt if called is min else operator.gt
            builder.ret(do_minmax(self.context, builder, signature.args, function.args, precedes))
        return self.builder.call(module.globals[name], values)

    def _range_iterator(self, state: Any) -> Any:
        """Emit an iterator: pointers to the next number and to the count of the remaining ones."""
        builder = self.builder
        start, stop, step = (builder.extract_value(state, k) for k in range(3))
        zero, one = step.type(0), step.type(1)
        following, count = (cgutils.alloca_once(builder, step.type) for _ in range(2))
        builder.store(start, following)
        difference = builder.sub(stop, start)
        is_up = builder.icmp_signed(">", difference, zero)
        is_empty = builder.xor(is_up, builder.icmp_signed(">", step, zero))
        is_endless = builder.icmp_unsigned("==", step, zero)
        with cgutils.if_unlikely(builder, is_endless):
            self.return_exception(ValueError, ("range() arg 3 must not be zero",))
        with builder.if_else(is_empty) as (then, otherwise):
            with then:
                builder.store(zero, count)
            with otherwise:
                rest = builder.srem(difference, step)
                rest = builder.select(is_up, rest, builder.neg(rest))
                is_uneven = builder.icmp_signed(">", rest, zero)
                whole = builder.sdiv(difference, step)
                builder.store(builder.add(whole, builder.select(is_uneven, one, zero)), count)
        return cgutils.make_anonymous_struct(builder, [following, stop, step, count])

    def _next_of_range(self, iterator: Any, pair: Any) -> Any:
        """Emit the next number of a range, and whether there is one."""
        builder = self.builder
        following, _, step, count = (builder.extract_value(iterator, k) for k in range(4))
        remaining = builder.load(count)
        is_valid = builder.icmp_signed(">", remaining, remaining.type(0))
        value = builder.load(following)
        with builder.if_then(is_valid):
            builder.store(builder.sub(remaining, remaining.type(1), flags=["nsw"]), count)
            builder.store(builder.add(value, step), following)
        return cgutils.make_anonymous_struct(
            builder, [value, is_valid], self.context.get_value_type(pair)
        )

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        """Lower the access to an element or to a part of an array."""
        kind, place = signature.args
        if not _is_plain(kind) or not isinstance(place, (types.Integer, types.SliceType)):
            return super().lower_getitem(resty, expr, value, index, signature)
        if isinstance(place, types.SliceType):
            if place.has_step or resty != kind:
                return super().lower_getitem(resty, expr, value, index, signature)
            return self._part(self.loadvar(value.name), self.loadvar(index.name))
        address = self._place(value.name, index.name, place)
        element = self.context.unpack_value(
            self.builder, kind.dtype, address, align=None if kind.aligned else 1
        )
        return self.context.cast(self.builder, element, kind.dtype, resty)

    def lower_setitem(
        self, target_var: Any, index_var: Any, value_var: Any, signature: Any
    ) -> Any:
        """Lower the assignment to an element."""
        kind, place, own = signature.args
        if not _is_plain(kind) or not isinstance(place, types.Integer):
            return super().lower_setitem(target_var, index_var, value_var, signature)
        address = self._place(target_var.name, index_var.name, place)
        value = self.context.cast(
            self.builder, self.loadvar(value_var.name), self.typeof(value_var.name), own
        )
        value = self.context.cast(self.builder, value, own, kind.dtype)
        self.context.pack_value(
            self.builder, kind.dtype, value, address, align=None if kind.aligned else 1
        )
        return None

    def _part(self, array: Any, bounds: Any) -> Any:
        """Emit the part of an array between two bounds, which are cut off at its ends."""
        builder, size = self.builder, self.builder.extract_value(array, [_SHAPE, 0])
        start, stop = (self._bound(builder.extract_value(bounds, k), size) for k in range(2))
        difference = builder.sub(stop, start)
        is_empty = builder.icmp_signed("<=", difference, size.type(0))
        count = builder.select(is_empty, size.type(0), difference)
        part = builder.insert_value(array, count, _SIZE)
        part = builder.insert_value(part, builder.gep(data_of(builder, array), [start]), _DATA)
        return builder.insert_value(part, count, [_SHAPE, 0])

    def _bound(self, bound: Any, size: Any) -> Any:
        """Emit a bound of a slice, counted from the start and cut off at both ends."""
        builder = self.builder
        bound = self._from_start(bound, size)
        place = cgutils.alloca_once_value(builder, bound)
        with builder.if_then(builder.icmp_signed("<", bound, size.type(0)), likely=False):
            builder.store(size.type(0), place)
        with builder.if_then(builder.icmp_signed(">=", bound, size), likely=False):
            builder.store(size, place)
        return builder.load(place)

    def _from_start(self, at: Any, size: Any) -> Any:
        """Emit an index that counts from the start, given one that counts from the end if < 0."""
        if isinstance(at, ir.Constant) and at.constant >= 0:
            return at
        builder = self.builder
        is_negative = builder.icmp_signed("<", at, size.type(0))
        return builder.select(is_negative, builder.add(at, size), at)

    def _place(self, array: str, index: str, kind: Any) -> Any:
        """Emit the address of an element; `kind` is the type of the index."""
        builder, value = self.builder, self.loadvar(array)
        word = types.intp if kind.signed else types.uintp
        at = self.context.cast(builder, self.loadvar(index), self.typeof(index), kind)
        at = self.context.cast(builder, at, kind, word)
        checked = self.context.enable_boundscheck
        size = builder.extract_value(value, [_SHAPE, 0]) if kind.signed or checked else None
        if kind.signed:
            at = self._from_start(at, size)
        if checked:
            cgutils.do_boundscheck(self.context, builder, at, size, 0)
        return builder.gep(data_of(builder, value), [at])


def _is_plain(kind: Any) -> bool:
    """Return whether elements of an array follow each other in one dimension."""
    return isinstance(kind, types.Array) and (kind.ndim, kind.layout) == (1, "C")
