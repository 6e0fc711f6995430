"""The names that a hook knows parameters by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gcodec.errors import ParameterError


class ParameterNames:
    """Names of parameters, by identity: buckets change, parameters stay."""

    def __init__(self, model: Any) -> None:
        self._given = model is not None
        self._names: dict[int, str] = {}
        self._kept: list[torch.Tensor] = []  # so that an identity stays that of one parameter
        pairs = model.named_parameters() if isinstance(model, torch.nn.Module) else model
        for name, parameter in pairs or ():
            self._add(parameter, name.removeprefix("module."))

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
        self._names[id(parameter)] = name
        self._kept.append(parameter)
