"""Count identifiers that say nothing about what they name. Exit with 1 if there are any.

    python tools/identifiers.py [folder or file ...]

Two things are counted in the Python sources:

- variables, parameters, attributes, functions and classes named by a word such as ``found`` or
  ``some``, which could name anything
- argument packs such as ``*rest`` or ``*how``, which hide from the reader what is passed
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("gcodec", "tests", "bench", "fuzz", "tools", "examples")
VAGUE = frozenset({"told", "found", "some", "given", "how", "made", "there", "every"})
PUBLIC = frozenset({"how"})  # attributes that callers of `gcodec.advisor` use
PUBLIC_PARAMETERS = frozenset({"every"})  # of `gcodec.torch.DiLoCo`
_NAMELESS = (ast.expr_context, ast.operator, ast.cmpop, ast.Constant)  # most nodes of a tree
VAGUE_PACKS = VAGUE | {"what", "where", "rest", "more", "known", "others", "these", "all_"}


def names_in(node: ast.AST) -> Iterator[str]:
    """Yield the names that a syntax node defines or uses."""
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
            yield name
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.ExceptHandler(name=str(name)):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from (alias.asname for alias in aliases if alias.asname)


def vague_identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the spelling of each vague identifier and argument pack."""
    nodes = [node for node in ast.walk(tree) if not isinstance(node, _NAMELESS)]
    uses_hypothesis = any(  # whose decorator is called `given`
        isinstance(node, ast.ImportFrom) and node.module == "hypothesis" for node in nodes
    )
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        for name in names_in(node):
            if name in PUBLIC_PARAMETERS & parameters and isinstance(node, (ast.arg, ast.Name)):
                continue
            if name == "given" and uses_hypothesis:
                continue
            if name in PUBLIC and isinstance(node, (ast.Attribute, ast.FunctionDef)):
                continue
            if name.strip("_") in VAGUE or "told" in name.split("_"):
                yield getattr(node, "lineno", 0), name
        if isinstance(node, ast.Call):
            for argument in node.args:
                if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Name):
                    name = argument.value.id
                    if name in VAGUE_PACKS - VAGUE:  # the others are counted as names
                        yield argument.lineno, f"*{name}"


def main(arguments: list[str]) -> int:
    """Print every vague identifier below the given paths, and return the exit status."""
    tops = [Path(argument) for argument in arguments] or [ROOT / folder for folder in FOLDERS]
    count = 0
    for top in tops:
        for path in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
            for line, name in sorted(set(vague_identifiers(ast.parse(path.read_text("utf-8"))))):
                print(f"{path}:{line}: {name}")
                count += 1
    print(f"{count} vague identifiers")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
