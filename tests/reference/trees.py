"""Trees of tensors as JSON and names (``docs/wire-format.md``, "Trees").

Tensors are objects of any type that is no container, number, text or None.
"""

from __future__ import annotations

import json
import math
from typing import Any

TAGS = {"tensor", "dict", "pairs", "tuple", "float"}


def paths(tree: Any) -> list[tuple[str, Any]]:
    """Return the tensors of a tree with their paths."""
    return [(".".join(parts), tensor) for parts, tensor in _tensors(tree)]


def _tensors(tree: Any) -> list[tuple[list[str], Any]]:
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return []
    if isinstance(tree, dict):
        items = list(tree.items())
    elif isinstance(tree, (list, tuple)):
        items = list(enumerate(tree))
    else:
        return [([], tree)]
    return [
        ([_escape(str(key)), *parts], tensor)
        for key, child in items
        for parts, tensor in _tensors(child)
    ]


def _escape(key: str) -> str:
    return "".join("\\" + letter if letter in ".\\" else letter for letter in key)


def text(tree: Any) -> str:
    """Return the JSON text of a tree, letter by letter."""
    return '{"version":1,"tree":' + _text(tree) + "}"


def _text(tree: Any) -> str:
    if tree is None:
        return "null"
    if isinstance(tree, bool):
        return "true" if tree else "false"
    if isinstance(tree, float) and not math.isfinite(tree):
        return '{"float":"' + str(tree) + '"}'
    if isinstance(tree, (int, float)):
        return repr(tree)
    if isinstance(tree, str):
        return json.dumps(tree, ensure_ascii=False)
    if isinstance(tree, tuple):
        return '{"tuple":[' + ",".join(map(_text, tree)) + "]}"
    if isinstance(tree, list):
        return "[" + ",".join(map(_text, tree)) + "]"
    if isinstance(tree, dict):
        if all(isinstance(key, str) for key in tree):
            items = [f"{_text(key)}:{_text(child)}" for key, child in tree.items()]
            return '{"dict":{' + ",".join(items) + "}}"
        items = [f"[{_text(key)},{_text(child)}]" for key, child in tree.items()]
        return '{"pairs":[' + ",".join(items) + "]}"
    return '{"tensor":null}'


def tree_of(structure: str, tensors: list[Any]) -> Any:
    """Return the tree of a valid JSON text, with these tensors in order."""
    remaining = iter(tensors)

    def build(node: Any) -> Any:
        if isinstance(node, list):
            return [build(child) for child in node]
        if not isinstance(node, dict):
            return node
        ((tag, content),) = node.items()
        if tag not in TAGS:
            raise ValueError(tag)
        if tag == "tensor":
            return next(remaining)
        if tag == "float":
            return float(content)
        if tag == "tuple":
            return tuple(build(child) for child in content)
        pairs = content.items() if tag == "dict" else content
        return {key: build(child) for key, child in pairs}

    tree = build(json.loads(structure)["tree"])
    if list(remaining):
        raise ValueError("there are more tensors than places")
    return tree
