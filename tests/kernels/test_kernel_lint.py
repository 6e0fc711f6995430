"""Rules for the sources of kernels."""

from __future__ import annotations

import ast
import functools
from collections import deque
from pathlib import Path

import gcodec
from gcodec.kernels.numeric import words
from gcodec.runtime import jit, memory

PACKAGE = Path(gcodec.__file__).parent
COMPILING = ("gcodec.runtime.compiler", "gcodec.runtime.entry", "gcodec.runtime.lowering")
SOURCES = sorted(
    path for room in ("kernels", "runtime") for path in (PACKAGE / room).rglob("*.py")
)


def decorator_name(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.id if isinstance(node, ast.Name) else ""


@functools.cache
def tree_of(source: Path) -> ast.Module:
    return ast.parse(source.read_text(encoding="utf-8"))


@functools.cache
def compiled_functions(source: Path) -> list[ast.FunctionDef]:
    return [
        node
        for node in ast.walk(tree_of(source))
        if isinstance(node, ast.FunctionDef)
        and {"kernel", "inline", "subroutine"}
        & {decorator_name(one) for one in node.decorator_list}
    ]


def negative(index: ast.expr) -> bool:
    """Return whether an index or an end of a slice has a minus sign."""
    if isinstance(index, ast.Slice):
        return any(negative(end) for end in (index.lower, index.upper) if end is not None)
    return isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub)


def stored(function: ast.FunctionDef) -> set[str]:
    """Return the names of the arrays whose elements a function assigns."""
    targets = (
        target
        for node in ast.walk(function)
        for target in (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AugAssign)
            else []
        )
    )
    inner = (
        part
        for target in targets
        for part in (target.elts if isinstance(target, ast.Tuple) else [target])
    )
    return {
        part.value.id
        for part in inner
        if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name)
    }


def members(function: ast.FunctionDef) -> dict[str, list[str]]:
    """Return the names to which a function assigns the elements of each tuple."""
    return {
        node.value.id: [name.id for name in target.elts if isinstance(name, ast.Name)]
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)
        for target in node.targets
        if isinstance(target, ast.Tuple)
    }


def test_compiled_functions_have_unique_names() -> None:
    names = [node.name for source in SOURCES for node in compiled_functions(source)]
    assert len(names) == len(set(names)) >= 15, sorted(names)


def test_compiled_functions_neither_raise_nor_allocate() -> None:
    forbidden = (ast.Raise, ast.Assert, ast.Try, ast.With, ast.Yield, ast.Lambda, ast.ListComp)
    allocating = {"empty", "zeros", "ones", "full", "array", "arange", "copy", "astype", "append"}
    for source in SOURCES:
        for function in compiled_functions(source):
            for node in ast.walk(function):
                where = f"{source.name}:{getattr(node, 'lineno', '?')}"
                assert not isinstance(node, forbidden), where
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    assert node.func.attr not in allocating, where
                if isinstance(node, ast.Subscript):
                    assert not negative(node.slice), f"{where}: a negative index"


def test_no_compiler_option_changes_bits() -> None:
    for source in SOURCES:
        for node in ast.walk(tree_of(source)):
            if isinstance(node, ast.keyword):
                assert node.arg not in ("fastmath", "parallel"), source.name
            if isinstance(node, (ast.Attribute, ast.Name)):
                name = node.attr if isinstance(node, ast.Attribute) else node.id
                assert name not in ("prange", "guvectorize", "vectorize", "stencil"), source.name
                if source.name != "jit.py":
                    assert name not in ("njit", "jit", "cfunc", "generated_jit"), source.name


def test_numba_is_imported_inside_functions_only() -> None:
    """The modules that consist of a compiler are themselves imported inside functions only."""
    for source in sorted(PACKAGE.rglob("*.py")):
        own = ".".join(("gcodec", *source.relative_to(PACKAGE).with_suffix("").parts))
        forbidden = COMPILING if own in COMPILING else ("numba", "llvmlite", *COMPILING)
        text = source.read_text(encoding="utf-8")
        if not any(one.rpartition(".")[2] in text for one in forbidden):
            continue  # parsing takes long
        outside = deque([ast.parse(text)])
        while outside:
            node = outside.popleft()
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            wrong = [n for n in names if any(f"{n}.".startswith(f"{one}.") for one in forbidden)]
            assert not wrong, f"{source}: line {node.lineno}"
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            if not isinstance(node, ast.FunctionDef):
                outside.extend(ast.iter_child_nodes(node))


def test_the_rules_detect_violations() -> None:
    for text, wrong in (
        ("-1", True),
        ("-k", True),
        ("n - 1", False),
        ("-3:", True),
        (":9", False),
    ):
        (node,) = (n for n in ast.walk(ast.parse(f"a[{text}]")) if isinstance(n, ast.Subscript))
        assert negative(node.slice) == wrong
    source = "def f(a, b, c):\n    a[0], c = b[1], 2\n    b[0] += 1\n    c = a[2]"
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    assert stored(function) == {"a", "b"}
    (function,) = ast.parse("def f(pair, k):\n    first, second = pair\n    a, b = k, 1").body
    assert isinstance(function, ast.FunctionDef)
    assert members(function) == {"pair": ["first", "second"]}


def test_constant_shifts_are_below_64() -> None:
    for source in SOURCES:
        for function in compiled_functions(source):
            for node in ast.walk(function):
                if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.LShift, ast.RShift)):
                    count = node.right
                    if isinstance(count, ast.Constant):
                        assert 0 <= count.value < 64, f"{source.name}:{node.lineno}"


def test_kernels_are_listed() -> None:
    """`jit.kernels` lists each kernel of a module or a factory under a name of its own."""
    declared = {
        node.name
        for source in SOURCES
        for node in compiled_functions(source)
        if "kernel" in {decorator_name(one) for one in node.decorator_list}
    }
    listed = jit.kernels()
    assert {kernel.function.__code__.co_name for kernel in listed} == declared
    assert len({kernel.name for kernel in listed}) == len(listed)


def test_kernels_do_not_write_to_read_only_arrays() -> None:
    functions = {node.name: node for source in SOURCES for node in compiled_functions(source)}
    kernels = jit.kernels()
    assert len(kernels) > 100
    for kernel in kernels:
        code = kernel.function.__code__
        names = code.co_varnames[: code.co_argcount]
        words = jit.grouped(kernel.signature, kernel.types)
        assert len(words) == len(names), kernel.name
        own = members(functions[code.co_name])
        read_only = set[str]()
        for name, word in zip(names, words, strict=True):
            pairs = [(name, word)]
            if isinstance(word, tuple):
                pairs = list(zip(own.get(name, word), word, strict=True))
            read_only |= {name for name, kind in pairs if kind.startswith("in ")}
        assert not read_only & stored(functions[code.co_name]), kernel.name


def test_intrinsics_have_the_names_of_their_variables() -> None:
    """`fuzz.plain` replaces intrinsics by name; an unknown one would exclude its kernels."""
    named = [
        (name, value.function.__name__)
        for module in (memory, words)
        for name, value in vars(module).items()
        if isinstance(value, jit.Intrinsic)
    ]
    assert len(named) > 10
    assert [pair for pair in named if pair[0] != pair[1]] == []
