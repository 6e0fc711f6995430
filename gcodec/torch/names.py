"""Names of a model's parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from gcodec.errors import ParameterError

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of tensors that travel as float32."""

_WRAPPERS = "_orig_mod", "_checkpoint_wrapped_module"  # of torch.compile and checkpointing
_REPLICA = "module."  # prefix of all names of a model in DDP


class ParameterNames:
    """Names of parameters by identity: DDP rebuilds its buckets, but keeps the parameters.

    Parameters
    ----------
    model : Module, mapping of names to parameters, iterable of (name, parameter), or None

    Raises
    ------
    ParameterError
        If `model` is of another type, or two parameters have the same name and would therefore
        share a residual.
    """

    def __init__(self, model: Any) -> None:
        self._has_model = model is not None
        self._names: dict[int, str] = {}  # by identity, which `_parameters` keeps valid
        self._parameters: dict[str, torch.Tensor] = {}
        for name, parameter in [] if model is None else _named_parameters(model):
            self._add(parameter, name)

    def of(self, parameters: Sequence[torch.Tensor]) -> list[str]:
        """Return the names of parameters. Without a model, new parameters are numbered."""
        for parameter in parameters:
            if id(parameter) not in self._names:
                if self._has_model:
                    shape = tuple(parameter.shape)
                    raise ParameterError(f"model: it lacks a parameter of shape {shape}")
                self._add(parameter, str(len(self._parameters)))
        return [self._names[id(parameter)] for parameter in parameters]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the known parameters by name."""
        return {name: tuple(p.shape) for name, p in self._parameters.items()}

    def trainable_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the known parameters that require gradients, by name."""
        return {name: tuple(p.shape) for name, p in self._parameters.items() if p.requires_grad}

    def _add(self, parameter: torch.Tensor, name: str) -> None:
        if self._parameters.setdefault(name, parameter) is not parameter:
            raise ParameterError(f"model: two parameters have the name {name!r}")
        self._names[id(parameter)] = name


def unwrapped(name: str) -> str:
    """Return a name without the parts that `torch.compile` and activation checkpointing insert."""
    return ".".join([part for part in name.split(".") if part not in _WRAPPERS])


def _named_parameters(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters of a model and their names, which lack what wrappers insert.

    Raise `ParameterError` for other objects.
    """
    named = list[tuple[str, torch.Tensor]]()
    try:
        if isinstance(model, torch.nn.Module):
            pairs = model.named_parameters()
        else:
            pairs = iter(model.items() if isinstance(model, Mapping) else model)
        for name, parameter in pairs:
            if not isinstance(name, str) or not isinstance(parameter, torch.Tensor):
                raise TypeError
            named.append((unwrapped(name), parameter))
    except (TypeError, ValueError):
        allowed = "a Module, or pairs of a name and a parameter"
        raise ParameterError.of("model", model, allowed) from None
    while named and all(name.startswith(_REPLICA) for name, _ in named):
        named = [(name.removeprefix(_REPLICA), parameter) for name, parameter in named]
    return named


def trainable_parameters(
    model: torch.nn.Module | Iterable[tuple[str, torch.Tensor]],
) -> dict[str, torch.Tensor]:
    """Return the parameters that require gradients, by name.

    They must have one of the dtypes `FLOATS`, and must not be sharded, as by FSDP2.
    A parameter with several names, such as a tied weight, has the first one only.
    """
    trainable: dict[str, torch.Tensor] = {}
    names: dict[torch.Tensor, str] = {}  # by identity
    for name, parameter in _named_parameters(model):
        if not parameter.requires_grad:
            continue
        if parameter.dtype not in FLOATS:
            allowed = "float32, float16 or bfloat16"
            raise ParameterError.of(f"{name}.dtype", parameter.dtype, allowed)
        if hasattr(parameter, "to_local"):
            allowed = "a whole tensor, not a DTensor, as FSDP2 and tensor parallelism make"
            raise ParameterError.of(name, type(parameter).__name__, allowed)
        if names.setdefault(parameter, name) != name:
            continue
        if trainable.setdefault(name, parameter) is not parameter:
            raise ParameterError(f"model: two parameters have the name {name!r}")
    return trainable
