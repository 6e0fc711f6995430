"""Interpreter for the pickle inside a file of torch.save, which runs no code of the file.

A pickle is a program, and Python's own unpickler calls every function that it names. The
interpreter in this module implements the opcodes of protocol 2 that torch.save writes. It creates
only containers, scalars, strings and inert records of tensors. `torch_records` lists the names
that a pickle may contain.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from gcodec.errors import Corrupt, FormatError, LimitExceeded, Truncated, Unsafe, Unsupported
from gcodec.tensorfiles.entries import MAX_ENTRIES, shown
from gcodec.tensorfiles.torch_records import (
    CALLS,
    GLOBALS,
    STORAGES,
    Global,
    Mapping,
    Storage,
    Tensor,
    call,
)

_MAX_OPCODES = 5_000_000
_MAX_STACK = 1_000_000
_MAX_MEMO = 1_000_000
_MAX_TEXT = 1 << 20
_MAX_GLOBAL = 256
_MAX_DEPTH = 100
_MAX_VISITS = 1_000_000
_MAX_NAME = 4096


class _Machine:
    """Stack machine that runs the opcodes of a pickle."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def run(self) -> object:
        if self.take(2) != b"\x80\x02":
            raise Unsupported(
                "the pickle is not of protocol 2: save again with torch.save's default"
            )
        for _ in range(_MAX_OPCODES):
            code = self.take(1)[0]
            if code == 0x2E:  # STOP
                value = self.pop()
                if self.stack or self.marks or self.at != len(self.data):
                    raise self.corrupt("pickle has values or bytes left at its end")
                return value
            step = _STEPS.get(code)
            if step is None:
                kind = Unsafe if code in _UNSAFE else Unsupported
                raise kind(f"pickle opcode {code:#04x} is not one of torch.save's", self.at - 1)
            step(self)
            if len(self.stack) > _MAX_STACK or len(self.memo) > _MAX_MEMO:
                raise LimitExceeded("pickle needs too deep a stack, or too many memos", self.at)
        raise LimitExceeded(f"pickle of more than {_MAX_OPCODES} opcodes")

    def corrupt(self, message: str) -> FormatError:
        return Corrupt(message, self.at)

    def take(self, size: int) -> bytes:
        part = self.data[self.at : self.at + size]
        if len(part) != size:
            raise Truncated("pickle ends too early", len(self.data))
        self.at += size
        return part

    def uint(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> object:
        self.top()
        return self.stack.pop()

    def top(self) -> object:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise self.corrupt("pickle pops from an empty stack")
        return self.stack[-1]

    def pop_marked(self) -> list[object]:
        if not self.marks:
            raise self.corrupt("pickle has no matching mark")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def mark(self) -> None:
        self.marks.append(len(self.stack))
        if len(self.marks) > _MAX_STACK:
            raise LimitExceeded("pickle needs too many marks", self.at)

    def text(self, size: int) -> str:
        if size > _MAX_TEXT:
            raise LimitExceeded(f"pickle has a string of {size} bytes, more than {_MAX_TEXT}")
        try:
            return self.take(size).decode("utf-8")
        except UnicodeDecodeError:
            raise self.corrupt("pickle has a string that is not UTF-8") from None

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + _MAX_GLOBAL)
        if end < 0:
            raise self.corrupt("pickle has an endless or unfinished name")
        text = self.text(end - self.at)
        self.at += 1
        return text

    def find_global(self) -> None:
        name = f"{self.line()}.{self.line()}"
        if name not in GLOBALS:
            raise Unsafe(f"the pickle names {shown(name)}, which is not part of a tensor")
        self.push(Global(name))

    def call(self) -> None:
        args, function = self.pop(), self.pop()
        if not isinstance(function, Global) or not isinstance(args, tuple):
            raise self.corrupt("pickle calls an object that is not a function")
        if function.name not in CALLS:
            raise Unsafe(f"the pickle calls {shown(function.name)}", self.at)
        self.push(call(function.name, args))

    def load_storage(self) -> None:
        match self.pop():
            case ("storage", Global(name=name), str(key), str(), int(numel)) if numel >= 0:
                if name not in STORAGES:
                    raise self.corrupt(f"pickle has a storage of type {shown(name)}")
                self.push(Storage(STORAGES[name], key, numel))
            case _:
                raise self.corrupt("pickle has a persistent id that is not a storage")

    def build(self) -> None:
        # The OrderedDict of a state_dict has an attribute with module versions, which is ignored.
        self.pop()
        if not isinstance(self.top(), Mapping):
            raise Unsafe("the pickle sets the state of something other than a dict", self.at)

    def append(self, values: list[object]) -> None:
        target = self.top()
        if not isinstance(target, list):
            raise self.corrupt("pickle appends to an object that is not a list")
        target.extend(values)

    def set_items(self, values: list[object]) -> None:
        target = self.top()
        if not isinstance(target, Mapping) or len(values) % 2:
            raise self.corrupt("pickle sets items of an object that is not a dict, or a key alone")
        target.items.extend(zip(values[::2], values[1::2], strict=True))

    def last(self, count: int) -> list[object]:
        return [self.pop() for _ in range(count)][::-1]

    def put(self, index: int) -> None:
        self.memo[index] = self.top()

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise self.corrupt("pickle reads a memo that it never wrote")
        self.push(self.memo[index])


_STEPS: dict[int, Callable[[_Machine], None]] = {
    ord("}"): lambda m: m.push(Mapping()),
    ord("]"): lambda m: m.push([]),
    ord(")"): lambda m: m.push(()),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("J"): lambda m: m.push(int.from_bytes(m.take(4), "little", signed=True)),
    ord("K"): lambda m: m.push(m.uint(1)),
    ord("M"): lambda m: m.push(m.uint(2)),
    0x8A: lambda m: m.push(int.from_bytes(m.take(m.uint(1)), "little", signed=True)),
    ord("G"): lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    ord("X"): lambda m: m.push(m.text(m.uint(4))),
    ord("("): _Machine.mark,
    ord("t"): lambda m: m.push(tuple(m.pop_marked())),
    0x85: lambda m: m.push(tuple(m.last(1))),
    0x86: lambda m: m.push(tuple(m.last(2))),
    0x87: lambda m: m.push(tuple(m.last(3))),
    ord("a"): lambda m: m.append(m.last(1)),
    ord("e"): lambda m: m.append(m.pop_marked()),
    ord("s"): lambda m: m.set_items(m.last(2)),
    ord("u"): lambda m: m.set_items(m.pop_marked()),
    ord("q"): lambda m: m.put(m.uint(1)),
    ord("r"): lambda m: m.put(m.uint(4)),
    ord("h"): lambda m: m.get(m.uint(1)),
    ord("j"): lambda m: m.get(m.uint(4)),
    ord("c"): _Machine.find_global,
    ord("R"): _Machine.call,
    ord("Q"): _Machine.load_storage,
    ord("b"): _Machine.build,
}

# INST, OBJ, NEWOBJ, NEWOBJ_EX, STACK_GLOBAL, EXT1, EXT2, EXT4, which call or import.
_UNSAFE = frozenset({0x69, 0x6F, 0x81, 0x92, 0x93, 0x82, 0x83, 0x84})


def read_tensors(data: bytes) -> list[tuple[str, Tensor]]:
    """List the tensors that a pickle of torch.save describes.

    Parameters
    ----------
    data : bytes
        Pickle.

    Returns
    -------
    list of (str, Tensor)
        Names and tensors in the order of the pickle. A name joins the keys of nested containers
        with "."; a tensor that is the whole pickle is named "tensor". Other values are omitted.

    Raises
    ------
    Unsafe
        If the pickle names or calls an object that is not part of a tensor.
    FormatError
        If the pickle is damaged, truncated, of another protocol, or too large.
    """
    root = _Machine(data).run()
    if isinstance(root, Tensor):
        return [("tensor", root)]
    tensors: list[tuple[str, Tensor]] = []
    for name, tensor in _walk(root, "", {id(root)}, iter(range(_MAX_VISITS))):
        tensors.append((name, tensor))
        if len(tensors) > MAX_ENTRIES:
            raise LimitExceeded(f"more than {MAX_ENTRIES} tensors in one file")
    return tensors


def _walk(
    container: object, prefix: str, path: set[int], visits: Iterator[int]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors in a container; `path` identifies it and those around it."""
    for key, value in _children(container):
        if next(visits, None) is None:
            raise LimitExceeded(f"the pickle holds more than {_MAX_VISITS} values")
        if not isinstance(value, (Tensor, Mapping, list, tuple)):
            continue
        name = prefix + _key_text(key)
        if len(name) > _MAX_NAME:
            raise LimitExceeded(f"a tensor's name has more than {_MAX_NAME} characters")
        if isinstance(value, Tensor):
            yield name, value
            continue
        if id(value) in path:
            raise Corrupt("the pickle has a container that contains itself")
        if len(path) >= _MAX_DEPTH:
            raise LimitExceeded(f"containers nested more than {_MAX_DEPTH} deep")
        path.add(id(value))
        yield from _walk(value, f"{name}.", path, visits)
        path.discard(id(value))


def _children(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        return iter(value.items)
    if isinstance(value, (list, tuple)):
        return iter(enumerate(value))
    return iter(())


def _key_text(key: object) -> str:
    if key is None or isinstance(key, (str, int, float)):
        return str(key)
    raise Unsupported("a dict of the pickle has a key that is neither text nor a number")
