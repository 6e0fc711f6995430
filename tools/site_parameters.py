"""Extension of ``mkdocs build``: parameters that share a description keep their own defaults.

Griffe, which reads the docstrings, gives all of them the default of the first one, and its type
unless the docstring states a type. It also takes types such as "str, mapping or Codec" for tuples,
which would get parentheses inside of those of the page.
"""

from __future__ import annotations

from typing import Any

import griffe


class OwnDefaults(griffe.Extension):
    """Take the defaults and types that a docstring does not state from the signature."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Correct the parameters of a function."""
        _correct(func)
        _drop_parentheses(func)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Correct the parameters of a class, and its attributes."""
        _correct(cls)
        _drop_parentheses(cls)


def _correct(documented: griffe.Function | griffe.Class) -> None:
    signature = documented.parameters
    if documented.docstring is None:
        return
    if len(signature) < 2:
        if isinstance(documented, griffe.Class):  # such as a codec: its decorator adds parameters
            documented.docstring.parser_options = {"warn_unknown_params": False}
        return
    for section in documented.docstring.parsed:
        if section.kind is not griffe.DocstringSectionKind.parameters:
            continue
        firsts: dict[str, Any] = {}  # the first parameter with each description
        for parameter in section.value:
            first = firsts.setdefault(parameter.description, parameter)
            if parameter is first or not all(p.name in signature for p in (first, parameter)):
                continue
            if first.value == signature[first.name].default:
                parameter.value = signature[parameter.name].default
            if first.annotation is signature[first.name].annotation:
                parameter.annotation = signature[parameter.name].annotation


def _drop_parentheses(documented: griffe.Function | griffe.Class) -> None:
    kinds = griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.attributes
    for section in documented.docstring.parsed if documented.docstring is not None else ():
        for item in section.value if section.kind in kinds else ():
            if isinstance(item.annotation, griffe.ExprTuple):
                item.annotation.implicit = True
