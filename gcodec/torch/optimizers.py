"""Optimizers that exchange compressed gradients themselves, without DDP: DGC and 1-bit Adam.

The methods are those of `gcodec.training`; this module gives them tensors and a process group.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
import torch

from gcodec import training
from gcodec.errors import ParameterError
from gcodec.torch.communicator import TorchCommunicator, check_communicator
from gcodec.torch.names import trainable_parameters
from gcodec.torch.saved_state import check_shapes, saved_array
from gcodec.torch.tensors import untraced
from gcodec.training.communicator import Communicator
from gcodec.wire.kinds import check_float32

_METHOD = "method"  # key of a state_dict that PyTorch's optimizers do not have
# Key of `Optimizer.state`, whose text a user reads. Where that is empty,
# `torch.distributed.checkpoint` would take a step with zeros, and it would never save the state of
# the method. For a key that is not a parameter, it raises KeyError with this text.
_SAVED_APART = "save this state_dict by torch.save: torch.distributed.checkpoint drops parts"
_KINDS = ("velocity", "residual", "momentum", "variance")  # of arrays in the shapes of parameters


class ExchangingOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Optimizer around a method of `gcodec.training`, with one learning rate.

    Parameters
    ----------
    parameters : dict
        Parameters by name.
    lr : float
        Learning rate, finite as float32; a scheduler may change it.
    """

    method: training.DGC | training.OneBitAdam
    _step_supports_amp_scaling = True  # a scaler calls `step` on all ranks, and sets `found_inf`

    def __init__(self, parameters: dict[str, torch.Tensor], lr: float) -> None:
        check_float32("lr", lr)
        super().__init__(list(parameters.values()), {"lr": lr})
        self._named = parameters
        self._compared: tuple[str, ...] | None = None  # parameters that the ranks have compared
        self.state[_SAVED_APART] = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse a second group, because all parameters share a learning rate."""
        if self.param_groups:
            raise ParameterError("param_group: the optimizer has exactly one group")
        super().add_param_group(param_group)

    @untraced
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step on all ranks, which must call this method together.

        Raises
        ------
        ParameterError
            If a gradient of any rank contains NaN or Inf; on all ranks. Also if the parameters or
            learning rates of the ranks differ, which they compare in the first step, after
            `load_state_dict`, and after parameters were frozen or unfrozen. Nothing has changed.
            Also if the learning rate is not finite, or if a ``GradScaler`` calls this method,
            because each rank's scaler decides for itself.
        """
        if self.__dict__.pop("found_inf", None) is not None:
            allowed = "None, because it skips steps of single ranks; bfloat16 needs none"
            raise ParameterError.of("scaler", "GradScaler", allowed)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        lr = check_float32("lr", float(self.param_groups[0]["lr"]))
        # Another rank may have a gradient where this one has none, but not of a frozen parameter.
        gradients = {
            name: _to_host(torch.zeros_like(p) if p.grad is None else p.grad)
            for name, p in self._named.items()
            if p.requires_grad
        }
        with torch.no_grad():
            self._update(gradients, lr)
        return loss

    def _update(self, gradients: dict[str, np.ndarray], lr: float) -> None:
        raise NotImplementedError

    def __getstate__(self) -> NoReturn:
        """Refuse a pickle or a copy, which would have neither a group nor accumulators."""
        name = type(self).__name__
        raise TypeError(f"{name} is neither pickled nor copied; save its state_dict")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of PyTorch's optimizer and of the method; each rank saves its own."""
        arrays = {key: torch.from_numpy(x) for key, x in self.method.state_dict().items()}
        state: dict[str, Any] = super().state_dict()
        return state | {_METHOD: arrays}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a dict that `state_dict` returned on the same rank.

        Raises
        ------
        ParameterError
            If this is no such dict, or the state of another model, rank or number of ranks.
            Nothing has changed.
        """
        saved = state_dict.get(_METHOD) if isinstance(state_dict, Mapping) else None
        if not isinstance(saved, Mapping):
            raise ParameterError.of("state_dict", state_dict, "a state_dict of this optimizer")
        arrays = {key: saved_array(x) for key, x in saved.items()}
        method = copy.copy(self.method)  # which remains as it is if either part is refused
        method.load_state_dict(arrays)
        check_shapes(arrays, {name: tuple(p.shape) for name, p in self._named.items()}, _KINDS)
        super().load_state_dict({key: x for key, x in state_dict.items() if key != _METHOD})
        self.state[_SAVED_APART] = {}  # which states of former versions lack
        self.method, self._compared = method, None


class DGC(ExchangingOptimizer):
    """Deep gradient compression: SGD whose ranks send the largest sums of velocities.

    Do not wrap the model in DDP; the optimizer averages the gradients. Set the attribute `epoch`
    at the start of each epoch, for the warm-up. See `gcodec.training.DGC`.

    Parameters
    ----------
    model : Module or iterable of (name, parameter)
        Model with the same parameters on all ranks. Parameters that require no gradient now take
        no part, even if they are unfrozen later.
    lr : float
        Learning rate.
    density, momentum, clip, warmup, value, min_size
        See `gcodec.training.DGC`.
    communicator : Communicator, optional
        Group of ranks. Default: a gloo group of all processes of torch.distributed.

    Attributes
    ----------
    epoch : int
        Current epoch, counted from 0.

    Examples
    --------
    >>> import torch, gcodec.torch
    >>> from gcodec.training import Simulator
    >>> def worker(communicator):
    ...     torch.manual_seed(0)
    ...     model = torch.nn.Linear(64, 32)
    ...     torch.nn.init.ones_(model.weight)
    ...     optimizer = gcodec.torch.DGC(
    ...         model, lr=0.1, density=0.01, warmup=0, min_size=64, communicator=communicator
    ...     )
    ...     model(torch.ones(1, 64)).sum().backward()
    ...     optimizer.step()
    ...     return (model.weight != 1).sum().item()
    >>> Simulator(2).run(worker)
    [20, 20]
    """

    def __init__(
        self,
        model: torch.nn.Module | Iterable[tuple[str, torch.Tensor]],
        lr: float,
        *,
        density: float = 0.001,
        momentum: float = 0.9,
        clip: float = math.inf,
        warmup: int = 4,
        value: str = "float32",
        min_size: int = 0,
        communicator: Communicator | None = None,
    ) -> None:
        super().__init__(trainable_parameters(model), lr)
        self.epoch = 0
        self.method: training.DGC = training.DGC(
            _checked(communicator),
            density=density,
            momentum=momentum,
            clip=clip,
            warmup=warmup,
            value=value,
            min_size=min_size,
        )

    def _update(self, gradients: dict[str, np.ndarray], lr: float) -> None:
        parameters = None
        if tuple(gradients) != self._compared:
            parameters = {name: _to_host(self._named[name]) for name in gradients}
        means = self.method.average(gradients, self.epoch, parameters=parameters, rate=lr)
        self._compared = tuple(gradients)
        for name, mean in means.items():
            parameter = self._named[name]
            change = torch.from_numpy(mean).to(parameter.device, parameter.dtype)
            parameter.add_(change, alpha=-lr)


class OneBitAdam(ExchangingOptimizer):
    """1-bit Adam: after a warm-up, the ranks exchange one bit for each element of the momenta.

    Do not wrap the model in DDP; the optimizer averages the gradients. See
    `gcodec.training.OneBitAdam`.

    Parameters
    ----------
    model : Module or iterable of (name, parameter)
        Model with the same parameters on all ranks. Parameters that require no gradient now take
        no part, even if they are unfrozen later.
    lr : float
        Learning rate.
    warmup, betas, scale, min_size
        See `gcodec.training.OneBitAdam`.
    eps : float
        The parameter `epsilon` of `gcodec.training.OneBitAdam`.
    communicator : Communicator, optional
        Group of ranks. Default: a gloo group of all processes of torch.distributed.

    Examples
    --------
    >>> import torch, gcodec.torch
    >>> from gcodec.training import Simulator
    >>> def worker(communicator):
    ...     torch.manual_seed(0)
    ...     model = torch.nn.Linear(64, 32)
    ...     optimizer = gcodec.torch.OneBitAdam(
    ...         model, lr=0.01, warmup=2, scale="deepspeed", communicator=communicator
    ...     )
    ...     for step in range(4):
    ...         optimizer.zero_grad()
    ...         model(torch.ones(1, 64) + communicator.rank).square().sum().backward()
    ...         optimizer.step()
    ...     return model.weight.detach()
    >>> first, second = Simulator(2).run(worker)
    >>> torch.equal(first, second)
    True
    """

    def __init__(
        self,
        model: torch.nn.Module | Iterable[tuple[str, torch.Tensor]],
        lr: float,
        *,
        warmup: int,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        scale: str = "l1",
        min_size: int = 1024,
        communicator: Communicator | None = None,
    ) -> None:
        super().__init__(trainable_parameters(model), lr)
        self.method: training.OneBitAdam = training.OneBitAdam(
            _checked(communicator),
            warmup=warmup,
            betas=betas,
            epsilon=eps,
            scale=scale,
            min_size=min_size,
        )

    def _update(self, gradients: dict[str, np.ndarray], lr: float) -> None:
        values = {name: _to_host(self._named[name]).copy() for name in gradients}
        self.method.step(values, gradients, lr)
        for name, value in values.items():
            self._named[name].copy_(torch.from_numpy(value))


def _checked(communicator: Communicator | None) -> Communicator:
    """Return the communicator, or that of a group of all processes in place of None."""
    if communicator is None:
        return TorchCommunicator.apart()
    check_communicator(communicator)
    return communicator


def _to_host(tensor: torch.Tensor) -> np.ndarray:
    dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    return dense.to("cpu", torch.float32).contiguous().numpy()
