"""The loader: turns the object file of a kernel into a function that CPython calls directly.

An object file defines one *loop*, a C function of an array of slots. One more object file defines
the *entry* (`gcodec.runtime.entry`), which converts the arguments of all kernels to slots. Both
depend on the platform and the processor, but on no release of Python, NumPy or Numba: the entry
calls CPython's stable interface, and it reads the fields of arrays at the places that NumPy's
binary interface fixes. Loading imports llvmlite, and nothing of Numba.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gcodec.errors import Unsupported
from gcodec.runtime import processor

ENTRY, LOOP_SYMBOL = "gcodec_entry", "gcodec_loop"
SLOTS = 64
# The descriptor of a kernel: the places of its words. The words of the arguments come last.
LOOP, NAME, ARRAY_TYPE, NOTHING, TYPE_ERROR, FAILURE, RESULT_COUNT, RESULTS, COUNT, TYPES = range(
    10
)
# The word of an argument: one of these numbers, or for an array, `ARRAY` plus a bit for each
# number of NumPy's dtypes that it may have, plus `WRITTEN` if the loop writes it.
SIGNED, UNSIGNED, FLOAT, BOOLEAN = range(4)
ARRAY, WRITTEN, DTYPES = 1 << 62, 1 << 61, 61
# Fields of an array and of its dtype: offsets in bytes on platforms of 64 bits, flags, and the
# numbers of dtypes. C's long is a dtype of its own, of 32 or 64 bits.
_HEADER = object.__basicsize__
TYPE, DATA, NDIM, SHAPE, DTYPE, FLAGS = (_HEADER + k for k in (-8, 0, 8, 16, 40, 48))
BYTE_ORDER, TYPE_NUMBER = _HEADER + 10, _HEADER + 12
CONTIGUOUS, WRITABLE = 1, 0x400
_FASTCALL = 0x80  # METH_FASTCALL
_FUNCTIONS = (
    *("PyBytes_AsString", "PyType_IsSubtype", "Py_IncRef", "Py_DecRef", "PyNumber_Index"),
    *("PyLong_AsLongLong", "PyLong_AsUnsignedLongLong", "PyFloat_AsDouble", "PyObject_IsTrue"),
    *("PyLong_FromLongLong", "PyLong_FromUnsignedLongLong", "PyFloat_FromDouble"),
    *("PyBool_FromLong", "PyTuple_New", "PyTuple_SetItem", "PyErr_Occurred", "PyErr_SetObject"),
    *("PyEval_SaveThread", "PyEval_RestoreThread"),
)


class _Method(ctypes.Structure):
    """CPython's ``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class Loader:
    """Places object files in memory, where they stay as long as the process.

    Parameters
    ----------
    entry : bytes
        Object file of the entry.

    Raises
    ------
    Unsupported
        NumPy stores arrays in another way than this release of gcodec knows.
    """

    def __init__(self, entry: bytes) -> None:
        _check_layout()
        self._kept: list[Any] = []
        llvm = processor.binding()
        for function in _FUNCTIONS:
            address = ctypes.cast(getattr(ctypes.pythonapi, function), ctypes.c_void_p).value
            llvm.add_symbol(function, address)
        address = self._engine(entry).get_function_address(ENTRY)
        self._method = _Method(b"kernel", address, _FASTCALL, None)
        # Functions point to it, and at the end of the process some outlive the loader.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._method))
        self._create = ctypes.pythonapi.PyCFunction_NewEx
        self._create.restype = ctypes.py_object
        self._create.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)

    def function(
        self,
        loop: bytes,
        name: str,
        symbol: str,
        signature: Sequence[str],
        results: Sequence[str],
        failure: type,
    ) -> Callable[..., Any]:
        """Return the function that calls a loop.

        Parameters
        ----------
        loop : bytes
            Object file of the loop, trusted: the function runs it.
        name : str
            Name of the kernel.
        symbol : str
            Name of the loop, under which object files that are loaded later may call it.
        signature, results : sequence of str
            Types of the arguments, such as ``out float32[]``, and of at most eight results.
        failure : type
            Class of the error if the loop reports one.
        """
        engine = self._engine(loop)
        processor.binding().add_symbol(symbol, engine.get_function_address(symbol))
        self._kept += [name, failure]  # the descriptor contains their addresses
        numbers = bytes(_number(each) for each in results if each != "none")
        descriptor = struct.pack(
            f"={TYPES + len(signature)}Q",
            engine.get_function_address(LOOP_SYMBOL),
            *(id(each) for each in (name, np.ndarray, None, TypeError, failure)),
            len(numbers),
            int.from_bytes(numbers, "little"),
            len(signature),
            *map(_argument, signature),
        )
        return self._create(ctypes.addressof(self._method), descriptor, None)

    def _engine(self, code: bytes) -> Any:
        """Return an engine that has loaded an object file."""
        llvm, machine = processor.binding(), processor.machine(processor.host())
        # An engine for each file, because they all define the same symbol.
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        self._kept.append(engine)
        return engine


def _argument(kind: str) -> int:
    """Return the word of an argument for its type, such as ``out float32[]``."""
    direction, _, name = kind.rpartition(" ")
    if not direction:
        return _number(name)
    written = WRITTEN if direction == "out" else 0
    return ARRAY | written | _dtype_mask(name.removesuffix("[]"))


def _number(name: str) -> int:
    """Return the type of a slot for the name of a scalar type, such as ``int64``."""
    return {"f": FLOAT, "i": SIGNED, "u": UNSIGNED, "b": BOOLEAN}[name[0]]


@functools.cache
def _dtype_mask(name: str) -> int:
    wanted = np.dtype(name)
    codes = "?bBhHiIlLqQfd"
    return sum({1 << np.dtype(code).num for code in codes if np.dtype(code) == wanted})


def _check_layout() -> None:
    """Compare the fields of an array with the places where the entry reads them."""
    x = np.zeros(3, np.float32)
    word, integer = ctypes.c_uint64.from_address, ctypes.c_int.from_address
    fields = (
        struct.calcsize("P") == 8,
        word(id(x) + TYPE).value == id(np.ndarray),
        word(id(x) + DATA).value == x.ctypes.data,
        integer(id(x) + NDIM).value == x.ndim,
        word(word(id(x) + SHAPE).value).value == x.size,
        word(id(x) + DTYPE).value == id(x.dtype),
        integer(id(x) + FLAGS).value == x.flags.num,
        integer(id(x.dtype) + TYPE_NUMBER).value == x.dtype.num,
        ctypes.string_at(id(x.dtype) + BYTE_ORDER, 1) == b"=",
    )
    if not all(fields):
        raise Unsupported(f"kernels cannot read the arrays of NumPy {np.__version__}")
