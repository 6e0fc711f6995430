"""Train a small model with the hook of DDP under Lightning, accelerate, transformers or Ray Train.

    torchrun --nproc-per-node 2 -m examples.trainers lightning
    torchrun --nproc-per-node 2 -m examples.trainers accelerate
    torchrun --nproc-per-node 2 -m examples.trainers transformers
    python -m examples.trainers ray

Each function shows where its library lets the hook in. Each prints the losses of the first and the
last step, what the hook has sent, and whether all replicas are equal.
"""

from __future__ import annotations

import hashlib
import tempfile
from typing import Any

import click
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import gcodec.torch

CODEC, RATE, BATCH = "ecsq:nmse=0.1", 0.1, 32


def network() -> torch.nn.Sequential:
    """Return the model, with the same values in each process."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 16))


def examples(steps: int) -> TensorDataset:
    """Return inputs, and the outputs of a linear map, for `steps` steps of two processes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2 * BATCH * steps, 64, generator=generator)
    return TensorDataset(x, x @ torch.randn(64, 16, generator=generator) / 8)


def report(losses: list[float], state: Any, model: torch.nn.Module) -> None:
    """Print the outcome from the first process."""
    values = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    digests: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, hashlib.blake2b(values.numpy().tobytes()).hexdigest())
    if dist.get_rank() == 0:
        print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last; {state}")
        print(f"distinct replicas: {len(set(digests))}", flush=True)


def lightning(steps: int) -> None:
    """Register the hook when Lightning has wrapped the module, which works on CPUs and GPUs."""
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.losses = network(), []

        def on_train_start(self) -> None:
            wrapped = self.trainer.strategy.model
            self.state, hook = gcodec.torch.ddp_hook(CODEC, model=wrapped)
            wrapped.register_comm_hook(self.state, hook)

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            loss = torch.nn.functional.mse_loss(self.network(batch[0]), batch[1])
            self.losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), RATE)

    module = Module()
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(examples(steps), BATCH))
    report(module.losses, module.state, module)


def accelerate(steps: int) -> None:
    """Register the hook on the model that accelerate has prepared."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    data = DataLoader(examples(steps), BATCH)
    model, optimizer, data = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), RATE), data
    )
    state, hook = gcodec.torch.ddp_hook(CODEC, model=model)
    model.register_comm_hook(state, hook)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
    report(losses, state, model)


def transformers(steps: int) -> None:
    """Register the hook in a callback, when the trainer has wrapped the model."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.losses = network(), []

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            loss = torch.nn.functional.mse_loss(self.network(x), y)
            self.losses.append(float(loss.detach()))
            return {"loss": loss}

    class Compress(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            wrapped = trainer.model_wrapped
            self.state, hook = gcodec.torch.ddp_hook(CODEC, model=wrapped)
            wrapped.register_comm_hook(self.state, hook)

    def collate(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
        x, y = zip(*rows, strict=True)
        return {"x": torch.stack(x), "y": torch.stack(y)}

    model, compress = Model(), Compress()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            learning_rate=RATE,
            optim="sgd",
            lr_scheduler_type="constant",
            max_grad_norm=0,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
        )
        trainer = Trainer(model, arguments, collate, examples(steps), callbacks=[compress])
        trainer.train()
    report(model.losses, compress.state, model)


def train_in_ray(config: dict[str, int]) -> None:
    """Train in a worker of Ray, which has wrapped the model."""
    from ray.train.torch import prepare_data_loader, prepare_model

    model = prepare_model(network())
    state, hook = gcodec.torch.ddp_hook(CODEC, model=model)
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    losses = []
    for x, y in prepare_data_loader(DataLoader(examples(config["steps"]), BATCH)):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    report(losses, state, model)


def ray(steps: int) -> None:
    """Start two workers of Ray Train."""
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    scaling = ScalingConfig(num_workers=2)
    TorchTrainer(train_in_ray, train_loop_config={"steps": steps}, scaling_config=scaling).fit()


LIBRARIES = {
    "lightning": lightning,
    "accelerate": accelerate,
    "transformers": transformers,
    "ray": ray,
}


@click.command()
@click.argument("library", type=click.Choice(list(LIBRARIES)))
@click.option("--steps", default=40, show_default=True)
def main(library: str, steps: int) -> None:
    """Train with one of the libraries."""
    LIBRARIES[library](steps)


if __name__ == "__main__":
    main()
