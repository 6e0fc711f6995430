"""Train replicas of a small GPT with DiLoCo, with dense and with compressed pseudo-gradients.

    python -m examples.diloco --ranks 2

Needs torch. Under ``torchrun``, the number of ranks is that of ``torchrun``.
"""

from __future__ import annotations

import click
import torch
import torch.distributed as dist

import gcodec.torch
from examples.ranks import start
from examples.small_gpt import TASK, loss_after


def train(codec: str, steps: int, period: int, fragments: int, overlap: int) -> tuple[float, str]:
    """Return the loss at the end, averaged over all ranks, and a line about the exchanges."""
    torch.manual_seed(0)
    model = TASK.model()
    inner = torch.optim.AdamW(model.parameters(), lr=TASK.adam_rate)
    outer = torch.optim.SGD(model.parameters(), lr=TASK.rate, momentum=0.6, nesterov=True)
    diloco = gcodec.torch.DiLoCo(
        model, outer, codec, every=period, fragments=fragments, overlap=overlap
    )
    loss = loss_after(steps, model, inner, diloco.step)
    return loss, repr(diloco)


def compare(codec: str, steps: int, period: int, fragments: int, overlap: int) -> None:
    """Train twice, and print both losses."""
    for spec in ("raw", codec):
        loss, text = train(spec, steps, period, fragments, overlap)
        if dist.get_rank() == 0:
            print(f"loss {loss:.4f} with {text}")


@click.command()
@click.option("--ranks", default=2, show_default=True)
@click.option("--steps", default=120, show_default=True)
@click.option("--codec", default="ecsq:bits=1", show_default=True)
@click.option(
    "--every", "period", default=15, show_default=True, help="Inner steps between exchanges."
)
@click.option("--fragments", default=1, show_default=True)
@click.option("--overlap", default=0, show_default=True, help="Inner steps that one may take.")
def main(ranks: int, steps: int, codec: str, period: int, fragments: int, overlap: int) -> None:
    """Compare both runs on this machine."""
    start(compare, ranks, codec, steps, period, fragments, overlap)


if __name__ == "__main__":
    main()
