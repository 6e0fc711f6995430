"""Train a small GPT under FSDP2, with dense and with compressed collectives.

    python -m examples.fsdp2 --ranks 2

Needs torch. Under ``torchrun``, the number of ranks is that of ``torchrun``.
"""

from __future__ import annotations

import click
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gcodec.torch
from examples.ranks import start
from examples.small_gpt import TASK, loss_after


def train(codec: str | None, parameters: str | None, steps: int) -> tuple[float, str]:
    """Return the loss after training, averaged over all ranks, and a line about the bytes."""
    torch.manual_seed(0)
    model = TASK.model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no mean
    text = "dense"
    if codec or parameters:
        comm = gcodec.torch.fsdp_comm(codec, parameters=parameters)
        comm.register(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=TASK.adam_rate)
    loss = loss_after(steps, model, optimizer)
    if codec or parameters:
        text = repr(comm)
    return loss, text


def compare(codec: str, parameters: str | None, steps: int) -> None:
    """Train twice, and print both losses."""
    dense, _ = train(None, None, steps)
    loss, text = train(codec, parameters, steps)
    if dist.get_rank() == 0:
        print(f"loss {dense:.4f} with dense collectives")
        print(f"loss {loss:.4f} with {text}")


@click.command()
@click.option("--ranks", default=2, show_default=True)
@click.option("--steps", default=60, show_default=True)
@click.option("--codec", default="ecsq:bits=2", show_default=True, help="Codec of gradients.")
@click.option("--parameters", help="Codec of parameters, such as minmax:bucket=256.")
def main(ranks: int, steps: int, codec: str, parameters: str | None) -> None:
    """Compare both runs on this machine."""
    start(compare, ranks, codec, parameters, steps)


if __name__ == "__main__":
    main()
