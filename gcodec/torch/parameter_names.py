"""The names that a hook knows parameters by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from gcodec.errors import ParameterError


class ParameterNames:
    """Names of parameters, by identity: buckets change, parameters stay.

    Parameters
    ----------
    model : Module or iterable of (name, parameter) or None

    Raises
    ------
    ParameterError
        For what is neither, and for a name of two parameters, which would share a residual.
    """

    def __init__(self, model: Any) -> None:
        self._given = model is not None
        self._names: dict[int, str] = {}
        self._named: dict[str, torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []  # so that an identity stays that of one parameter
        for name, parameter in [] if model is None else _pairs(model):
            self._add(parameter, name)

    def of(self, parameters: Sequence[torch.Tensor]) -> list[str]:
        """Return the names of parameters; those without one get the next number."""
        for parameter in parameters:
            if id(parameter) not in self._names:
                if self._given:
                    shape = tuple(parameter.shape)
                    raise ParameterError(f"model: it lacks a parameter of shape {shape}")
                self._add(parameter, str(len(self._kept)))
        return [self._names[id(parameter)] for parameter in parameters]

    def _add(self, parameter: torch.Tensor, name: str) -> None:
        if self._named.setdefault(name, parameter) is not parameter:
            raise ParameterError(f"model: two parameters have the name {name!r}")
        self._names[id(parameter)] = name
        self._kept.append(parameter)


def _pairs(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names, a leading ``module.`` left out, and parameters."""
    try:
        each = model.named_parameters() if isinstance(model, torch.nn.Module) else iter(model)
        for name, parameter in each:
            if not isinstance(name, str) or not isinstance(parameter, torch.Tensor):
                raise TypeError
            yield name.removeprefix("module."), parameter
    except (TypeError, ValueError):
        allowed = "a Module, or pairs of a name and a parameter"
        raise ParameterError.of("model", model, allowed) from None
