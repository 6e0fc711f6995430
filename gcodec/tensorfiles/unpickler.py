"""Interpreter of pickles that runs no code of the file.

A pickle is a program, and Python's own unpickler calls every function that it names. This
interpreter implements the opcodes that PyTorch writes. It creates only containers, scalars,
strings and inert records. A `Dialect` lists the names that a pickle may contain.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from gcodec.errors import Corrupt, FormatError, LimitExceeded, Truncated, Unsafe, Unsupported
from gcodec.tensorfiles.entries import shown

_MAX_OPCODES = 5_000_000
_MAX_STACK = 1_000_000
_MAX_MEMO = 1_000_000
_MAX_TEXT = 1 << 20
_MAX_GLOBAL = 256
_MAX_DIMENSIONS = 64  # as for kernels of PyTorch; a pickle can name one long tuple many times


@dataclass(frozen=True, eq=False)
class Global:
    """Name of a class or function in the pickle."""

    name: str


@dataclass(eq=False)
class Mapping:
    """Items of a dict or OrderedDict."""

    # A list, because keys of a pickle may be unhashable, or deliberately slow to hash.
    items: list[tuple[object, object]] = field(default_factory=list)


@dataclass(eq=False)
class Record:
    """Instance of a class that the dialect allows: the class's name, and the instance's state."""

    name: str
    state: object = None


def _no_storage(persistent_id: object) -> object:
    raise Corrupt("pickle has a persistent id, and no storage belongs to it")


@dataclass(frozen=True)
class Dialect:
    """The pickles that one function of PyTorch writes.

    Attributes
    ----------
    writer : str
        Name of the function, for error messages.
    protocols : tuple of int
        Protocols of pickle that it writes: 2, or newer ones that contain the opcodes of 4.
    constants : frozenset of str
        Names that a pickle may contain, besides those of functions and classes.
    functions : frozenset of str
        Functions that a pickle may call.
    call : callable
        Function that returns the record for the name of a function and its arguments, or raises
        `FormatError`.
    classes : frozenset of str
        Classes of which a pickle may create instances without arguments.
    storage : callable
        Function that returns the record for a persistent id, or raises `FormatError`.
    """

    writer: str
    protocols: tuple[int, ...]
    constants: frozenset[str]
    functions: frozenset[str]
    call: Callable[[str, tuple[object, ...]], object]
    classes: frozenset[str] = frozenset()
    storage: Callable[[object], object] = _no_storage


def unpickle(data: bytes, dialect: Dialect) -> object:
    """Return the value that a pickle describes, made of containers, scalars and records.

    Raises
    ------
    Unsafe
        If the pickle names or calls an object that the dialect does not contain.
    FormatError
        If the pickle is damaged, truncated, of another protocol, or too large.
    """
    return _Machine(data, dialect).run()


def dimensions(value: object) -> tuple[int, ...]:
    """Check a shape, a stride or an offset of a pickle.

    Raises
    ------
    Corrupt
        If the value is not a tuple of integers from 0 to 2**63 - 1.
    Unsupported
        If the tuple has more than 64 items.
    """
    counts = value if isinstance(value, tuple) else (None,)
    if len(counts) > _MAX_DIMENSIONS:
        many = f"{len(counts)} dimensions, more than {_MAX_DIMENSIONS}"
        raise Unsupported(f"a tensor of the pickle has {many}")
    if not all(type(n) is int and 0 <= n < 2**63 for n in counts):
        raise Corrupt("a tensor of the pickle has a bad shape or stride")
    return counts


class _Machine:
    """Stack machine that runs the opcodes of a pickle."""

    def __init__(self, data: bytes, dialect: Dialect) -> None:
        self.data = data
        self.dialect = dialect
        self.names = dialect.constants | dialect.functions | dialect.classes
        self.at = 0
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def run(self) -> object:
        start = self.take(2)
        if start[0] != 0x80 or start[1] not in self.dialect.protocols:
            protocols = " or ".join(map(str, self.dialect.protocols))
            raise Unsupported(
                f"the pickle is not of protocol {protocols}: save again with the default of "
                f"{self.dialect.writer}"
            )
        steps = _STEPS if start[1] == 2 else _NEWER_STEPS
        for _ in range(_MAX_OPCODES):
            code = self.take(1)[0]
            if code == 0x2E:  # STOP
                value = self.pop()
                if self.stack or self.marks or self.at != len(self.data):
                    raise self.corrupt("pickle has values or bytes left at its end")
                return value
            step = steps.get(code)
            if step is None:
                kind = Unsafe if code in _UNSAFE else Unsupported
                writer = self.dialect.writer
                raise kind(f"pickle opcode {code:#04x} is not one of {writer}'s", self.at - 1)
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

    def find_stack_global(self) -> None:
        match self.pop(), self.pop():
            case str(attribute), str(module) if len(module) + len(attribute) < _MAX_GLOBAL:
                self.push_global(module, attribute)
            case _:
                raise self.corrupt("pickle has a name that is not text, or too long")

    def push_global(self, module: str, attribute: str) -> None:
        name = f"{module}.{attribute}"
        if name not in self.names:
            raise Unsafe(
                f"the pickle names {shown(name)}, which is not part of a tensor; save tensors "
                "without other objects, such as a state_dict"
            )
        self.push(Global(name))

    def call(self) -> None:
        args, function = self.pop(), self.pop()
        if not isinstance(function, Global) or not isinstance(args, tuple):
            raise self.corrupt("pickle calls an object that is not a function")
        if function.name not in self.dialect.functions:
            raise Unsafe(f"the pickle calls {shown(function.name)}", self.at)
        self.push(self.dialect.call(function.name, args))

    def create(self) -> None:
        args, cls = self.pop(), self.pop()
        if not isinstance(cls, Global) or args != ():
            raise self.corrupt("pickle creates an object with arguments, or not of a class")
        if cls.name not in self.dialect.classes:
            raise Unsafe(f"the pickle creates a {shown(cls.name)}", self.at)
        self.push(Record(cls.name))

    def build(self) -> None:
        state, target = self.pop(), self.top()
        if isinstance(target, Record):
            target.state = state
        # The OrderedDict of a state_dict has an attribute with module versions, which is ignored.
        elif not isinstance(target, Mapping):
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

    def frame(self) -> None:
        if self.uint(8) > len(self.data) - self.at:
            raise Truncated("pickle ends too early", len(self.data))

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
    ord("c"): lambda m: m.push_global(m.line(), m.line()),
    ord("R"): _Machine.call,
    ord("Q"): lambda m: m.push(m.dialect.storage(m.pop())),
    ord("b"): _Machine.build,
}

_NEWER_STEPS = _STEPS | {
    0x81: _Machine.create,
    0x8C: lambda m: m.push(m.text(m.uint(1))),
    0x93: _Machine.find_stack_global,
    0x94: lambda m: m.put(len(m.memo)),
    0x95: _Machine.frame,
}

# INST, OBJ, NEWOBJ, NEWOBJ_EX, STACK_GLOBAL, EXT1, EXT2, EXT4, which call or import.
_UNSAFE = frozenset({0x69, 0x6F, 0x81, 0x92, 0x93, 0x82, 0x83, 0x84})
