"""gcodec for PyTorch: tensors as frames, exchanges for DDP, FSDP2 and DiLoCo, and optimizers.

    model.register_comm_hook(*gcodec.torch.ddp_hook("topk:ratio=0.01", model=model))
    gcodec.torch.fsdp_comm("ecsq:bits=2").register(sharded_model)
    diloco = gcodec.torch.DiLoCo(model, outer_optimizer, "ecsq:bits=1", every=100)

Needs the extra ``torch``. Codecs and error feedback themselves live elsewhere.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("gcodec.torch needs PyTorch: pip install 'gcodec[torch]'") from error

from gcodec.torch.communicator import TorchCommunicator
from gcodec.torch.ddp import DdpState, ddp_hook
from gcodec.torch.diloco import DiLoCo
from gcodec.torch.fsdp import FsdpComm, fsdp_comm
from gcodec.torch.optimizers import DGC, OneBitAdam
from gcodec.torch.tensors import decode, encode

__all__ = [
    "DGC",
    "DdpState",
    "DiLoCo",
    "FsdpComm",
    "OneBitAdam",
    "TorchCommunicator",
    "ddp_hook",
    "decode",
    "encode",
    "fsdp_comm",
]
