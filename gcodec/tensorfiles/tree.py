"""Trees of tensors: take them apart into named tensors, and put them together again.

A tree consists of mappings, lists, tuples, NamedTuples, dataclasses and, if JAX is loaded, nodes
that are registered with it. Its leaves are arrays, numbers, texts and None.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays.frameworks import JAX
from gcodec.arrays.source import advice_for, is_array
from gcodec.errors import ParameterError, brief
from gcodec.frame import Frame
from gcodec.tensorfiles.structure import MAX_DEPTH, Leaf, check_scalar, is_flat, path_part

_SCALARS = (bool, int, float, str)


class Container(NamedTuple):
    """An inner node of a tree.

    Attributes
    ----------
    kind : type
        dict, list or tuple: the plain container of the same structure.
    keys : sequence of str or int
        Keys, names of fields, or indices of the children.
    children : sequence
        The children, in the order of `keys`.
    rebuild : callable
        Function that returns a container like the original with other children.
    """

    kind: type
    keys: Sequence[str | int]
    children: Sequence[object]
    rebuild: Callable[[Sequence[object]], object]


def take_apart(tree: object) -> tuple[Any | None, list[tuple[str, Any]]]:
    """Separate the tensors of a tree from its structure.

    Parameters
    ----------
    tree : object
        Tree; see `gcodec.save_file`.

    Returns
    -------
    structure : object or None
        Plain tree of dicts, lists, tuples, numbers, texts and None, with a `Leaf` for each tensor.
        None for a mapping of tensors, which the names express alone.
    tensors : list of (str, array)
        Tensors in the order of the tree, with their paths or, without a structure, their keys.

    Raises
    ------
    TypeError
        If a leaf is no array, number, text or None, or a key is no text and no integer.
    ParameterError
        If the tree is too deep, two tensors have the same path, an integer has more than 64 bits,
        or UTF-8 cannot write a text.
    """
    if is_scalar(tree):
        raise TypeError(
            f"tree is of type {type(tree).__name__}: must be an array, or a container of them"
        )
    tensors: dict[str, object] = {}

    def visit(node: object, parts: tuple[str, ...]) -> Any:
        path = ".".join(parts)
        subject = f"tree: {brief(repr(path))}" if parts else "tree"
        if is_scalar(node):
            check_scalar(node, subject)
            return node
        if is_array(node):
            if path in tensors:
                raise ParameterError(
                    f"tree: two tensors have the path {brief(repr(path))}: the keys of a mapping "
                    "must differ as texts"
                )
            tensors[path] = node
            return Leaf(path)
        container = container_of(node)
        if container is None:
            raise TypeError(
                f"{subject} is of type {type(node).__name__}: must be an array, a number, a text, "
                f"None, or a container of them{advice_for(node, 'x' if parts else 'tree')}"
            )
        if len(parts) == MAX_DEPTH:
            raise ParameterError(f"tree: must be nested at most {MAX_DEPTH} deep")
        for key in container.keys:
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                raise TypeError(
                    f"tree: the key {brief(repr(key))} is of type {type(key).__name__}: must be a "
                    "text or an integer"
                )
            check_scalar(key, f"{subject}: a key")
        children = [
            visit(child, (*parts, path_part(key)))
            for key, child in zip(container.keys, container.children, strict=True)
        ]
        if container.kind is dict:
            return dict(zip(container.keys, children, strict=True))
        return container.kind(children)

    structure = visit(tree, ())
    if is_flat(structure):
        return None, list(zip(structure, tensors.values(), strict=True))
    return structure, list(tensors.items())


def put_together(structure: object, decode: Callable[[str], object]) -> Any:
    """Return a plain tree with the tensors of a structure.

    Parameters
    ----------
    structure : object
        Structure; see `take_apart`.
    decode : callable
        Function that returns the tensor of a name.
    """
    if isinstance(structure, Leaf):
        return decode(structure.name)
    if isinstance(structure, dict):
        return {key: put_together(node, decode) for key, node in structure.items()}
    if isinstance(structure, (list, tuple)):
        return type(structure)(put_together(node, decode) for node in structure)
    return structure


def put_together_like(
    structure: object, like: object, decode: Callable[[str, object], object]
) -> Any:
    """Return a tree with the tensors of a structure and the types of another tree.

    Parameters
    ----------
    structure : object
        Structure; see `take_apart`.
    like : object
        Tree of the same structure.
    decode : callable
        Function that returns the tensor of a name, like an array.

    Raises
    ------
    ParameterError
        If the structures differ, or `decode` raises it; the error names the tensor.
    """
    # All differences are found before the first tensor is decoded.
    _compare(structure, like, ())

    def visit(node: object, like: object) -> Any:
        if isinstance(node, Leaf):
            try:
                return decode(node.name, like)
            except ParameterError as error:
                raise ParameterError(f"tensor {node.name!r}: {error}") from None
        if not isinstance(node, (dict, list, tuple)):
            return node
        container = _counterpart(node, like, ())
        pairs = zip(_children(node, container), container.children, strict=True)
        return container.rebuild([visit(child, item) for child, item in pairs])

    return visit(structure, like)


def _compare(node: object, like: object, parts: tuple[str, ...]) -> None:
    """Raise `ParameterError` if a tree does not have a structure."""
    kind = type(like).__name__
    if isinstance(node, Leaf):
        if not is_array(like):
            raise ParameterError(
                f"{_title(parts)} is of type {kind}: must be an array, as in the file"
            )
    elif not isinstance(node, (dict, list, tuple)):
        if not is_scalar(like):
            shown = brief(repr(node))
            raise ParameterError(
                f"{_title(parts)} is of type {kind}: must be a scalar; it is {shown} in the file"
            )
    else:
        container = _counterpart(node, like, parts)
        children = _children(node, container)
        for key, child, item in zip(container.keys, children, container.children, strict=True):
            _compare(child, item, (*parts, path_part(key)))


def _counterpart(node: Any, like: object, parts: tuple[str, ...]) -> Container:
    """Return `like` as a container of the same children as a node of a structure."""
    container = None if is_scalar(like) or is_array(like) else container_of(like)
    is_mapping = isinstance(node, dict)
    if container is None or (container.kind is dict) != is_mapping:
        plain = "a mapping, a NamedTuple or a dataclass" if is_mapping else "a list or a tuple"
        kind = type(like).__name__
        raise ParameterError(f"{_title(parts)} is of type {kind}: must be {plain}, as in the file")
    if is_mapping and (keys := set(container.keys)) != node.keys():
        for key in node:
            if key not in keys:
                raise ParameterError(
                    f"{_title(parts)} lacks {brief(repr(key))}, which the file has"
                )
        excess = next(key for key in container.keys if key not in node)
        raise ParameterError(f"{_title(parts)} has {brief(repr(excess))}, which the file lacks")
    if len(container.children) != len(node):
        count = len(container.children)
        raise ParameterError(
            f"{_title(parts)} has {count} items: must have {len(node)}, as in the file"
        )
    return container


def _children(node: Any, container: Container) -> list[object]:
    """Return the children of a dict, list or tuple in the order of a container's keys."""
    return [node[key] for key in container.keys] if isinstance(node, dict) else list(node)


def _title(parts: tuple[str, ...]) -> str:
    return f"like: {brief(repr('.'.join(parts)))}" if parts else "like"


def is_scalar(node: object) -> bool:
    """Return whether a node is None, a number or a text of Python, which the structure stores."""
    return node is None or (isinstance(node, _SCALARS) and not isinstance(node, np.generic))


def container_of(node: object) -> Container | None:
    """Return a node as a container, or None for other objects, such as a frame."""
    if isinstance(node, dict):
        return _mapping_of(node, lambda children: _dict_like(node, children))
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        fields: Any = node
        return Container(dict, fields._fields, node, fields._make)
    if isinstance(node, (list, tuple)):
        kind = list if isinstance(node, list) else tuple
        return Container(kind, range(len(node)), node, type(node))
    if (registered := JAX.node(node)) is not None:
        is_sequence, keys, children, rebuild = registered
        return Container(list if is_sequence else dict, keys, children, rebuild)
    if isinstance(node, Mapping):
        return _mapping_of(node, lambda children: dict(zip(node, children, strict=True)))
    if dataclasses.is_dataclass(node) and not isinstance(node, (type, Frame)):
        names = [field.name for field in dataclasses.fields(node)]
        return Container(
            dict,
            names,
            [getattr(node, name) for name in names],
            lambda children: _dataclass_like(node, names, children),
        )
    return None


def _mapping_of(
    mapping: Mapping[Any, object], rebuild: Callable[[Sequence[object]], object]
) -> Container:
    return Container(dict, list(mapping), list(mapping.values()), rebuild)


def _dict_like(like: dict[object, object], children: Sequence[object]) -> dict[object, object]:
    """Return a dict of the same class, keys and attributes, such as a module's state."""
    result = copy.copy(like)
    if hasattr(like, "__dict__"):  # Counter and defaultdict drop attributes from copies
        vars(result).update(vars(like))
    for key, child in zip(like, children, strict=True):
        result[key] = child  # `update` of a Counter counts
    return result


def _dataclass_like(like: object, names: list[str], children: Sequence[object]) -> object:
    result = copy.copy(like)
    for name, child in zip(names, children, strict=True):
        object.__setattr__(result, name, child)  # also if the class is frozen
    return result
