r"""The structure of a tree of tensors, which names alone cannot express, as bytes.

A file of a nested tree begins with a frame named ``\structure``, whose tensor is JSON text. It
states the mappings, lists and tuples of the tree, its numbers and texts, and the places of its
tensors. The names of the tensors are the paths of these places. Specification:
docs/wire-format.md, "Trees".
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from gcodec.errors import Corrupt, FormatError, ParameterError, Unsupported, brief
from gcodec.frame import MEMBERS_NAME

STRUCTURE_NAME = "\\structure"
"""Name of the frame that contains the structure; no path of a tensor begins like this."""

FILE_PREFIX = "\\file:"
"""Start of the name of a frame that contains the first bytes of a file; see `exact_file`."""

MAX_DEPTH = 64
"""Largest number of mappings, lists and tuples around a value."""

MAX_NBYTES = 1 << 23
"""Largest size of the JSON text in bytes."""

_VERSION = 1
_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1
_MAX_DIGITS = 20  # of integers in the range; Python refuses to parse thousands of them


def is_reserved(name: str) -> bool:
    """Return whether a frame of this name contains no tensor, but describes other frames."""
    return name in (STRUCTURE_NAME, MEMBERS_NAME) or name.startswith(FILE_PREFIX)


class Leaf(NamedTuple):
    """The place of a tensor in a tree.

    Attributes
    ----------
    name : str
        Name of the frame of the tensor.
    """

    name: str


def path_part(key: str | int) -> str:
    """Return the part of a path that a key or an index contributes; dots join the parts."""
    if isinstance(key, int):
        text = int.__repr__(key)
    else:
        text = str.__str__(key)  # a member of an enumeration has another text than the JSON
    return text.replace("\\", "\\\\").replace(".", "\\.")


def check_scalar(value: object, title: str) -> None:
    """Raise `ParameterError` if a structure cannot express a key, a number or a text.

    Parameters
    ----------
    value : object
        Key or leaf.
    title : str
        Subject of the error, such as "tree: 'step'".
    """
    if isinstance(value, int) and not _MIN_INTEGER <= value <= _MAX_INTEGER:
        raise ParameterError(
            f"{title} is an integer of {value.bit_length()} bits: must be from -2**63 to 2**64 - 1"
        )
    if isinstance(value, str):
        try:
            str.encode(value)
        except UnicodeEncodeError:
            shown = brief(repr(str.__str__(value)))
            raise ParameterError(
                f"{title} is {shown}: must be a text that UTF-8 can write"
            ) from None


def is_flat(tree: object) -> bool:
    """Return whether the keys of a tree, as names of tensors, express it without a structure."""
    return (
        isinstance(tree, dict)
        and bool(tree)
        and all(isinstance(key, str) and not key.startswith("\\") for key in tree)
        and all(isinstance(node, Leaf) for node in tree.values())
    )


def write(tree: object) -> bytes:
    """Return the JSON text of a tree of dicts, lists, tuples, numbers, texts, None and `Leaf`.

    All keys, numbers and texts must have passed `check_scalar`.

    Raises
    ------
    ParameterError
        If the text exceeds `MAX_NBYTES`.
    """
    document = {"version": _VERSION, "tree": _node(tree)}
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    if len(data) > MAX_NBYTES:
        raise ParameterError(
            f"tree: its structure takes {len(data)} bytes, and must take at most {MAX_NBYTES}"
        )
    return data


def _node(node: object) -> object:
    """Return the JSON value of a node."""
    if isinstance(node, Leaf):
        return {"tensor": None}
    if isinstance(node, dict):
        if all(isinstance(key, str) for key in node):
            return {"dict": {key: _node(child) for key, child in node.items()}}
        return {"pairs": [[key, _node(child)] for key, child in node.items()]}
    if isinstance(node, tuple):
        return {"tuple": [_node(child) for child in node]}
    if isinstance(node, list):
        return [_node(child) for child in node]
    if isinstance(node, float) and not math.isfinite(node):
        return {"float": "nan" if math.isnan(node) else "inf" if node > 0 else "-inf"}
    return node


def read(data: bytes, names: Sequence[str]) -> Any:
    """Read a tree from its JSON text.

    Parameters
    ----------
    data : bytes
        JSON text in UTF-8.
    names : sequence of str
        Names of the tensors that follow in the file, which must be the paths of the tree's
        tensors in the same order.

    Returns
    -------
    object
        Tree of dicts, lists, tuples, numbers, texts, None and `Leaf`.

    Raises
    ------
    Corrupt
        If the text is no structure, is nested too deeply, or belongs to other tensors.
    Unsupported
        If the text has a version or a kind of node that this release does not know.
    """
    document = _parse(data)
    if not isinstance(document, dict) or "version" not in document:
        raise Corrupt("the structure is no JSON object with a version")
    version = document["version"]
    if type(version) is not int:
        raise Corrupt(f"the structure has the version {brief(repr(version))}")
    if version != _VERSION:
        raise Unsupported(f"structure version {version}; this release reads {_VERSION}")
    if document.keys() != {"version", "tree"}:
        raise Corrupt("the structure must consist of version and tree")
    reader = _TreeReader(names)
    tree = reader.tree(document["tree"])
    if reader.position != len(names):
        raise Corrupt(f"the structure has {reader.position} tensors, and the file {len(names)}")
    return tree


def _parse(data: bytes) -> object:
    if len(data) > MAX_NBYTES:
        raise Corrupt(f"the structure has {len(data)} bytes, more than {MAX_NBYTES}")
    try:
        return json.loads(
            str(data, "utf-8"),
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_constant,
        )
    except UnicodeDecodeError as error:
        raise Corrupt(f"the structure is not UTF-8 at its byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Corrupt(f"the structure is not JSON at its character {error.pos}") from None
    except RecursionError:
        raise _too_deep() from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise Corrupt("an object of the structure has the same key twice")
    return mapping


def _integer(digits: str) -> int:
    value = int(digits) if len(digits) <= _MAX_DIGITS else _MAX_INTEGER + 1
    if not _MIN_INTEGER <= value <= _MAX_INTEGER:
        raise Corrupt("an integer of the structure has more than 64 bits")
    return value


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise Corrupt("a number of the structure exceeds the range of float64")
    return value


def _constant(word: str) -> float:
    raise Corrupt(f"the structure contains {word}, which is not JSON")


class _TreeReader:
    """Turns JSON values into a tree whose tensors have the names of a file, in order."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.position = 0  # of the next tensor
        # Only tensors need their paths, and the file has a name as long as each of these. Paths
        # of all nodes could take far more memory than the file.
        self.parts: list[str] = []

    def tree(self, node: object) -> Any:
        """Return the tree of a JSON value."""
        if isinstance(node, list):
            return self.children(enumerate(node))
        if isinstance(node, str):
            return _text(node)
        if not isinstance(node, dict):
            return node  # a number, a boolean or None
        if len(node) != 1:
            raise Corrupt(f"a node of the structure has {len(node)} kinds, and must have one")
        ((kind, content),) = node.items()
        match kind, content:
            case "tensor", None:
                return self.leaf()
            case "tuple", list():
                return tuple(self.children(enumerate(content)))
            case "dict", dict():
                return self.mapping(content.items())
            case "pairs", list() if all(map(_is_pair, content)):
                return self.mapping(content)
            case "float", str() if content in _NONFINITE:
                return _NONFINITE[content]
            case "tensor" | "tuple" | "dict" | "pairs" | "float", _:
                raise Corrupt(f"a node of the structure has no valid {kind}")
        raise Unsupported(f"a node of the structure has the kind {brief(repr(kind))}")

    def leaf(self) -> Leaf:
        """Return the next tensor, which must have the current path as its name."""
        if self.position == len(self.names):
            raise Corrupt(f"the structure has more than the {self.position} tensors of the file")
        name, path = self.names[self.position], ".".join(self.parts)
        if name != path:
            raise Corrupt(
                f"tensor {self.position} is named {brief(repr(name))}, and the structure requires "
                f"{brief(repr(path))}"
            )
        self.position += 1
        return Leaf(name)

    def children(self, pairs: Iterable[tuple[str | int, object]]) -> list[Any]:
        """Return the trees of the children of a node, from pairs of a key and a JSON value."""
        if len(self.parts) == MAX_DEPTH:
            raise _too_deep()
        trees = []
        for key, node in pairs:
            self.parts.append(path_part(key))
            trees.append(self.tree(node))
            self.parts.pop()
        return trees

    def mapping(self, pairs: Collection[tuple[str | int, object]]) -> dict[str | int, Any]:
        """Return a mapping from pairs of a key and a JSON value."""
        keys = [_text(key) if isinstance(key, str) else key for key, _ in pairs]
        if len(set(keys)) != len(keys):
            raise Corrupt("a mapping of the structure has the same key twice")
        return dict(zip(keys, self.children(pairs), strict=True))


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int)


def _text(text: str) -> str:
    """Return a text; raise `Corrupt` for half a surrogate pair, which JSON can escape."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Corrupt("a text of the structure is not Unicode") from None
    return text


def _too_deep() -> FormatError:
    return Corrupt(f"the structure is nested more than {MAX_DEPTH} deep")
