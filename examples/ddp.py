"""Train a small GPT under DDP, with a plain all-reduce and with each collective of the hook.

    python -m examples.ddp --ranks 4

Needs torch. The ranks 0 and 1, 2 and 3 and so on stand for nodes of two ranks. Under ``torchrun``,
the number of ranks is that of ``torchrun``.
"""

from __future__ import annotations

import click
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gcodec.torch
from examples.ranks import start
from examples.small_gpt import TASK, loss_after

COLLECTIVES = ("gather", "two-phase", "hierarchical")


def train(codec: str, collective: str | None, steps: int) -> tuple[float, str]:
    """Return the loss at the end, averaged over all ranks, and a line about the bytes."""
    torch.manual_seed(0)
    model = DistributedDataParallel(TASK.model())
    text = "a plain all-reduce"
    if collective is not None:
        state, hook = gcodec.torch.ddp_hook(codec, model=model, collective=collective, inside=2)
        model.register_comm_hook(state, hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=TASK.adam_rate)
    loss = loss_after(steps, model, optimizer)
    if collective is not None:
        inside = f", {state.inside_nbytes:,} inside of nodes" if state.inside_nbytes else ""
        text = f"{collective}: {state.received_nbytes:,} bytes received{inside}"
    return loss, text


def compare(codec: str, collectives: tuple[str, ...], steps: int) -> None:
    """Train once with each collective, and print the losses."""
    for collective in (None, *collectives):
        loss, text = train(codec, collective, steps)
        if dist.get_rank() == 0:
            print(f"loss {loss:.4f} with {text}")


@click.command()
@click.option("--ranks", default=4, show_default=True)
@click.option("--steps", default=60, show_default=True)
@click.option("--codec", default="ecsq:bits=2", show_default=True)
@click.option(
    "--collective",
    "collectives",
    multiple=True,
    type=click.Choice(COLLECTIVES),
    help="One or several.  [default: all]",
)
def main(ranks: int, steps: int, codec: str, collectives: tuple[str, ...]) -> None:
    """Compare the collectives on this machine."""
    start(compare, ranks, codec, collectives or COLLECTIVES, steps)


if __name__ == "__main__":
    main()
