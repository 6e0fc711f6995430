"""The entry: the function, in LLVM IR, through which CPython calls all kernels.

It has the interface of CPython's built-in functions. It checks the types of arrays, converts
numbers, releases the GIL, calls a loop, and converts the results of the loop. A descriptor names
the loop and the types; see `gcodec.runtime.loader`. Arguments and results travel in *slots* of 64
bits: a number takes one slot, and an array two, for its address and its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from gcodec.runtime import loader, processor
from gcodec.runtime.processor import Processor

_WORD, _INT, _BYTE, _VOID = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.VoidType()
_ADDRESS, _DOUBLE = _BYTE.as_pointer(), ir.DoubleType()
_NULL = _ADDRESS(None)
_LOOP = ir.FunctionType(_INT, [_WORD.as_pointer()])


def code(target: Processor) -> bytes:
    """Return the object file of the entry, for a processor."""
    module = ir.Module("gcodec")
    module.triple = target.triple
    _Entry(module).emit()
    llvm = processor.binding()
    machine = processor.machine(target)
    return machine.emit_object(llvm.parse_assembly(str(module)))


class _Entry:
    """Emits the entry into a module."""

    def __init__(self, module: ir.Module) -> None:
        self._module = module
        kind = ir.FunctionType(_ADDRESS, [_ADDRESS, _ADDRESS.as_pointer(), _WORD])
        function = ir.Function(module, kind, loader.ENTRY)
        owner, self._arguments, self._passed_count = function.args
        self._builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        self._counters = [builder.alloca(_WORD) for _ in range(3)]
        self._slot = builder.alloca(_WORD)  # number of the next slot
        self._slots = builder.alloca(_WORD, _WORD(loader.SLOTS))
        self._descriptor = self._call("PyBytes_AsString", _ADDRESS, owner)

    def emit(self) -> None:
        """Emit the whole function."""
        builder, count = self._builder, self._field(loader.COUNT)
        self._refuse(builder.icmp_unsigned("!=", self._passed_count, count))
        # Numbers first: their conversion may run Python code, which could change an array.
        for convert in (self._number, self._array):
            builder.store(_WORD(0), self._slot)
            with self._each(count) as i:
                convert(
                    builder.load(builder.gep(self._arguments, [i])),
                    self._field_at(builder.add(i, _WORD(loader.TYPES))),
                )
        loop = builder.inttoptr(self._field(loader.LOOP), _LOOP.as_pointer())
        thread = self._call("PyEval_SaveThread", _ADDRESS)
        failed = builder.call(loop, [self._slots])
        self._call("PyEval_RestoreThread", _VOID, thread)
        with builder.if_then(builder.icmp_signed("!=", failed, _INT(0)), likely=False):
            self._raise(loader.FAILURE)
        self._return()

    # --- arguments -------------------------------------------------------------------------------

    def _number(self, obj: Any, kind: Any) -> None:
        """Emit the conversion of a number to a slot, and the return of an error in it."""
        builder = self._builder
        place = builder.gep(self._slots, [builder.load(self._slot)])
        with self._when(kind, loader.SIGNED):
            builder.store(self._call("PyLong_AsLongLong", _WORD, obj), place)
        with self._when(kind, loader.UNSIGNED):
            # PyLong_AsUnsignedLongLong alone refuses the integers of NumPy.
            index = self._call("PyNumber_Index", _ADDRESS, obj)
            with builder.if_then(builder.icmp_unsigned("==", index, _NULL), likely=False):
                builder.ret(_NULL)
            builder.store(self._call("PyLong_AsUnsignedLongLong", _WORD, index), place)
            self._call("Py_DecRef", _VOID, index)
        with self._when(kind, loader.FLOAT):
            value = self._call("PyFloat_AsDouble", _DOUBLE, obj)
            builder.store(builder.bitcast(value, _WORD), place)
        with self._when(kind, loader.BOOLEAN):
            truth = self._call("PyObject_IsTrue", _INT, obj)
            builder.store(builder.zext(truth, _WORD), place)
        with builder.if_then(builder.not_(self._is_array(kind))):
            error = self._call("PyErr_Occurred", _ADDRESS)
            with builder.if_then(builder.icmp_unsigned("!=", error, _NULL), likely=False):
                builder.ret(_NULL)
        self._advance(kind)

    def _array(self, obj: Any, kind: Any) -> None:
        """Emit the check of an array, and the stores of its address and size."""
        builder = self._builder
        with builder.if_then(self._is_array(kind)):
            self._check(obj, kind)
            place = builder.gep(self._slots, [builder.load(self._slot)])
            builder.store(_load(builder, obj, loader.DATA, _WORD), place)
            shape = _load(builder, obj, loader.SHAPE, _WORD.as_pointer())
            builder.store(builder.load(shape), builder.gep(place, [_WORD(1)]))
        self._advance(kind)

    def _check(self, obj: Any, kind: Any) -> None:
        """Emit a `TypeError` for anything but a contiguous vector of the dtype of a type word."""
        builder = self._builder
        own, expected = _load(builder, obj, loader.TYPE, _WORD), self._field(loader.ARRAY_TYPE)
        with builder.if_then(builder.icmp_unsigned("!=", own, expected), likely=False):
            both = (builder.inttoptr(word, _ADDRESS) for word in (own, expected))
            derived = self._call("PyType_IsSubtype", _INT, *both)
            self._refuse(builder.icmp_signed("==", derived, _INT(0)))
        dimensions = _load(builder, obj, loader.NDIM, _INT)
        self._refuse(builder.icmp_signed("!=", dimensions, _INT(1)))
        flags = builder.zext(_load(builder, obj, loader.FLAGS, _INT), _WORD)
        self._refuse(_lacks(builder, flags, loader.CONTIGUOUS))
        written = builder.and_(kind, _WORD(loader.WRITTEN))
        with builder.if_then(builder.icmp_unsigned("!=", written, _WORD(0))):
            self._refuse(_lacks(builder, flags, loader.WRITABLE))
        dtype = _load(builder, obj, loader.DTYPE, _ADDRESS)
        order = _load(builder, dtype, loader.BYTE_ORDER, _BYTE)
        self._refuse(builder.icmp_unsigned("==", order, _BYTE(ord(">"))))
        number = builder.zext(_load(builder, dtype, loader.TYPE_NUMBER, _INT), _WORD)
        self._refuse(builder.icmp_unsigned(">=", number, _WORD(loader.DTYPES)))
        self._refuse(_lacks(builder, builder.lshr(kind, number), 1))

    def _advance(self, kind: Any) -> None:
        """Emit the step to the slot of the next argument."""
        builder = self._builder
        width = builder.add(builder.zext(self._is_array(kind), _WORD), _WORD(1))
        builder.store(builder.add(builder.load(self._slot), width), self._slot)

    # --- results ---------------------------------------------------------------------------------

    def _return(self) -> None:
        """Emit the return of None, of a number or of a tuple of numbers."""
        builder = self._builder
        types, count = self._field(loader.RESULTS), self._field(loader.RESULT_COUNT)
        with builder.if_then(builder.icmp_unsigned("==", count, _WORD(0))):
            nothing = builder.inttoptr(self._field(loader.NOTHING), _ADDRESS)
            self._call("Py_IncRef", _VOID, nothing)
            builder.ret(nothing)
        with builder.if_then(builder.icmp_unsigned("==", count, _WORD(1))):
            builder.ret(self._boxed(types, _WORD(0)))
        results = self._call("PyTuple_New", _ADDRESS, count)
        with builder.if_then(builder.icmp_unsigned("==", results, _NULL), likely=False):
            builder.ret(_NULL)
        with self._each(count) as i:
            self._call("PyTuple_SetItem", _INT, results, i, self._boxed(types, i))
        builder.ret(results)

    def _boxed(self, types: Any, i: Any) -> Any:
        """Emit the conversion of result i to an object; each type takes a byte of a word."""
        builder = self._builder
        kind = builder.and_(builder.lshr(types, builder.shl(i, _WORD(3))), _WORD(0xFF))
        value, boxed = builder.load(builder.gep(self._slots, [i])), builder.alloca(_ADDRESS)
        builder.store(_NULL, boxed)
        for number, function, argument in (
            (loader.SIGNED, "PyLong_FromLongLong", value),
            (loader.UNSIGNED, "PyLong_FromUnsignedLongLong", value),
            (loader.FLOAT, "PyFloat_FromDouble", builder.bitcast(value, _DOUBLE)),
            (loader.BOOLEAN, "PyBool_FromLong", value),
        ):
            with self._when(kind, number):
                builder.store(self._call(function, _ADDRESS, argument), boxed)
        return builder.load(boxed)

    # --- parts -----------------------------------------------------------------------------------

    def _field(self, place: int) -> Any:
        """Emit a word of the descriptor."""
        return self._field_at(_WORD(place))

    def _field_at(self, place: Any) -> Any:
        words = self._builder.bitcast(self._descriptor, _WORD.as_pointer())
        return self._builder.load(self._builder.gep(words, [place]), align=1)

    def _is_array(self, kind: Any) -> Any:
        return self._builder.icmp_unsigned(">=", kind, _WORD(loader.ARRAY))

    def _when(self, kind: Any, number: int) -> Any:
        return self._builder.if_then(self._builder.icmp_unsigned("==", kind, _WORD(number)))

    @contextmanager
    def _each(self, count: Any) -> Iterator[Any]:
        """Emit a loop whose body is the body of the ``with`` statement."""
        builder, counter = self._builder, self._counters.pop()
        builder.store(_WORD(0), counter)
        head, body, done = (builder.append_basic_block(name) for name in ("head", "body", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        i = builder.load(counter)
        builder.cbranch(builder.icmp_unsigned("<", i, count), body, done)
        builder.position_at_end(body)
        yield i
        builder.store(builder.add(i, _WORD(1)), counter)
        builder.branch(head)
        builder.position_at_end(done)

    def _refuse(self, condition: Any) -> None:
        """Emit a `TypeError` under a condition."""
        with self._builder.if_then(condition, likely=False):
            self._raise(loader.TYPE_ERROR)

    def _raise(self, error: int) -> None:
        """Emit the return of an error, whose message is the name of the kernel."""
        builder = self._builder
        kind, name = (
            builder.inttoptr(self._field(place), _ADDRESS) for place in (error, loader.NAME)
        )
        self._call("PyErr_SetObject", _VOID, kind, name)
        builder.ret(_NULL)

    def _call(self, name: str, returned: Any, *args: Any) -> Any:
        function = self._module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(returned, [arg.type for arg in args])
            function = ir.Function(self._module, kind, name)
        return self._builder.call(function, args)


def _lacks(builder: Any, flags: Any, flag: int) -> Any:
    """Emit whether a bit of a word is 0."""
    return builder.icmp_unsigned("==", builder.and_(flags, _WORD(flag)), _WORD(0))


def _load(builder: Any, obj: Any, offset: int, kind: Any) -> Any:
    """Emit the load of a field of an object, at an offset from its start."""
    place = builder.gep(obj, [_WORD(offset)])
    return builder.load(builder.bitcast(place, kind.as_pointer()))
