"""The tasks: a residual network on digits; a GPT and an LSTM on bytes of Python source code."""

from __future__ import annotations

import functools
import math
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

_TEXT_BYTES = 2_000_000
_GROUPS = 8  # number of channel groups for normalization
_SPLIT = 7  # seed of the validation split, which is the same for all runs


class Task(NamedTuple):
    """A model, its data, and its training settings.

    Attributes
    ----------
    title : str
        Description of the task.
    metric : {"accuracy", "loss"}
        In percent; in nats per byte.
    steps, batch : int
        Steps of a run; batch size of one worker.
    rate, momentum : float
        Learning rate and momentum of gradient descent. The rate is the peak of the schedule, which
        ends with a cosine decay to 0.
    adam_rate : float
        Learning rate of Adam, with dense gradients and with 1 bit.
    model : callable
        Returns a new model.
    batches : callable
        Takes a seed, a rank and the number of workers; yields pairs of inputs and targets without
        end.
    score : callable
        Takes a model; returns the metric on held-out data.
    weight_decay : float
        Weight decay of Adam, apart from the gradient.
    """

    title: str
    metric: str
    steps: int
    batch: int
    rate: float
    momentum: float
    adam_rate: float
    model: Callable[[], nn.Module]
    batches: Callable[[int, int, int], Iterator[tuple[torch.Tensor, torch.Tensor]]]
    score: Callable[[nn.Module], float]
    weight_decay: float = 0.0


# --- digits -------------------------------------------------------------------------------------


class Block(nn.Module):
    """A residual block: two convolutions and a shortcut.

    Groups of channels are normalized rather than batches, because the batches of workers with
    different classes differ too much.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(_GROUPS, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(_GROUPS, outputs)
        self.past: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.past = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the block."""
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.past(x))


def resnet(channels: int, widths: tuple[int, ...], depth: int, classes: int) -> nn.Module:
    """Return a residual network whose first layer keeps the size of the image."""
    blocks: list[nn.Module] = []
    before = widths[0]
    for stage, width in enumerate(widths):
        for place in range(depth):
            blocks.append(Block(before, width, 2 if stage and not place else 1))
            before = width
    return nn.Sequential(
        nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False),
        nn.GroupNorm(_GROUPS, widths[0]),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(before, classes),
    )


@functools.cache
def _digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(_SPLIT).permutation(len(labels))
    x = torch.from_numpy(images[order].reshape(-1, 1, 8, 8) / 8 - 1).float()
    y = torch.from_numpy(labels[order])
    return x[:1297], y[:1297], x[1297:], y[1297:]


def _digit_batches(
    seed: int, rank: int, workers: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    x, y, _, _ = _digits()
    # Each worker lacks some classes, which it can learn only from others.
    order = torch.argsort(y, stable=True)
    size = len(y) // workers
    own = order[rank * size : (rank + 1) * size]
    yield from shuffled(x[own], y[own], DIGITS.batch, np.random.default_rng([seed, rank]))


def shuffled(
    x: torch.Tensor, y: torch.Tensor, batch: int, rng: np.random.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches, in a new order in each epoch."""
    while True:
        order = torch.from_numpy(rng.permutation(len(y)))
        for start in range(0, len(y) - batch + 1, batch):
            chosen = order[start : start + batch]
            yield x[chosen], y[chosen]


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the share of correct predictions in percent."""
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(x[at : at + 500]).argmax(1) == y[at : at + 500]).sum())
            for at in range(0, len(y), 500)
        )
    return 100 * right / len(y)


DIGITS = Task(
    "ResNet on digits, two or three classes to each worker",
    "accuracy",
    steps=400,
    batch=8,
    rate=0.05,
    momentum=0.5,
    adam_rate=1.5e-3,
    model=lambda: resnet(1, (16, 32), 1, 10),
    batches=_digit_batches,
    score=lambda model: accuracy(model, *_digits()[2:]),
)


# --- bytes of source text -----------------------------------------------------------------------


class GPT(nn.Module):
    """A small transformer over bytes."""

    def __init__(self, width: int = 32, layers: int = 1, context: int = 32) -> None:
        super().__init__()
        self.token = nn.Embedding(256, width)
        self.place = nn.Parameter(0.02 * torch.randn(context, width))
        layer = functools.partial(
            nn.TransformerEncoderLayer, width, 4, 4 * width, 0.0, "gelu", batch_first=True
        )
        self.layers = nn.ModuleList([layer(norm_first=True) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 256, bias=False)
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of each next byte."""
        x = self.token(tokens) + self.place
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        return self.out(self.norm(x))


class LSTM(nn.Module):
    """A recurrent network over bytes."""

    def __init__(self, width: int = 16, hidden: int = 32) -> None:
        super().__init__()
        self.token = nn.Embedding(256, width)
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of each next byte."""
        return self.out(self.lstm(self.token(tokens))[0])


@functools.cache
def _text() -> tuple[torch.Tensor, torch.Tensor]:
    """Return bytes of the standard library for training, and others for validation."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    data = b"".join(path.read_bytes() for path in files)[:_TEXT_BYTES]
    symbols = torch.from_numpy(np.frombuffer(data, np.uint8).astype(np.int64))
    cut = len(symbols) * 9 // 10
    return symbols[:cut], symbols[cut:]


def _windows(
    text: torch.Tensor, starts: np.ndarray, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.stack([text[start : start + length + 1] for start in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]


def _text_batches(length: int, batch: int) -> Callable[..., Iterator[tuple[torch.Tensor, ...]]]:
    def batches(seed: int, rank: int, workers: int) -> Iterator[tuple[torch.Tensor, ...]]:
        rng, (text, _) = np.random.default_rng([seed, rank]), _text()
        part = len(text) // workers
        own = text[rank * part : (rank + 1) * part]
        while True:
            yield _windows(own, rng.integers(0, part - length - 1, batch), length)

    return batches


def _loss(length: int, windows: int = 512) -> Callable[[nn.Module], float]:
    def loss(model: nn.Module) -> float:
        model.eval()
        _, text = _text()
        starts = np.random.default_rng(_SPLIT).integers(0, len(text) - length - 1, windows)
        total = 0.0
        with torch.no_grad():
            for at in range(0, len(starts), 64):
                x, y = _windows(text, starts[at : at + 64], length)
                total += float(error(model, x, y)) * len(x)
        return total / len(starts)

    return loss


GPT_BYTES = Task(
    "GPT on bytes",
    "loss",
    steps=250,
    batch=8,
    rate=0.7,
    momentum=0.5,
    adam_rate=1e-2,
    model=GPT,
    batches=_text_batches(32, 8),
    score=_loss(32),
)
LSTM_BYTES = Task(
    "LSTM on bytes",
    "loss",
    steps=400,
    batch=8,
    rate=3.0,
    momentum=0.5,
    adam_rate=5e-2,
    model=LSTM,
    batches=_text_batches(32, 8),
    score=_loss(32),
)


def large_gpt(width: int = 208, layers: int = 4, length: int = 64, windows: int = 256) -> Task:
    """Return a task for AdamW; its rate and momentum are those of an outer optimizer."""
    return Task(
        "Larger GPT on bytes",
        "loss",
        steps=96,
        batch=4,
        rate=0.7,
        momentum=0.6,
        adam_rate=2e-3,
        model=lambda: GPT(width, layers, length),
        batches=_text_batches(length, 4),
        score=_loss(length, windows),
        weight_decay=0.1,
    )


def error(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of a model's predictions in nats."""
    answers = model(x)
    return functional.cross_entropy(answers.reshape(-1, answers.shape[-1]), y.reshape(-1))


def share_of_rate(task: Task, step: int) -> float:
    """Return the fraction of the peak rate at a step: a short warm-up, then a cosine decay."""
    rise = min(1.0, (step + 1) / 20)
    return rise * 0.5 * (1 + math.cos(math.pi * step / task.steps))


# --- CIFAR-10, optional --------------------------------------------------------------------------


def cifar(folder: Path) -> Task:
    """Return a task for ResNet-18 on CIFAR-10, from the ``cifar-10-batches-py`` files in a folder.

    The files are pickles: only use files from the authors of the data set.
    """
    import pickle

    def load(names: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        batches = [pickle.loads((folder / name).read_bytes(), encoding="bytes") for name in names]
        x = np.concatenate([part[b"data"] for part in batches]).reshape(-1, 3, 32, 32)
        y = np.concatenate([part[b"labels"] for part in batches])
        return torch.from_numpy(x).float() / 64 - 2, torch.from_numpy(y)

    x, y = load([f"data_batch_{number}" for number in range(1, 6)])
    held = load(["test_batch"])

    def batches(seed: int, rank: int, workers: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        rng = np.random.default_rng([seed, rank])
        for images, labels in shuffled(x[rank::workers], y[rank::workers], 32, rng):
            flipped = torch.flip(images, [3]) if rng.random() < 0.5 else images
            yield flipped, labels

    return Task(
        "ResNet-18 on CIFAR-10",
        "accuracy",
        steps=2000,
        batch=32,
        rate=0.1,
        momentum=0.9,
        adam_rate=3e-3,
        model=lambda: resnet(3, (64, 128, 256, 512), 2, 10),
        batches=batches,
        score=lambda model: accuracy(model, *held),
    )


TASKS = {"digits": DIGITS, "gpt": GPT_BYTES, "lstm": LSTM_BYTES}


class Changes(NamedTuple):
    """Changes to the settings of tasks.

    Attributes
    ----------
    folder : Path or None
        Folder of CIFAR-10, which replaces all tasks.
    steps : int or None
        Number of steps of a run.
    rates : float
        Factor for all learning rates.
    """

    folder: Path | None = None
    steps: int | None = None
    rates: float = 1.0


def chosen(names: tuple[str, ...], changes: Changes) -> dict[str, Task]:
    """Return the tasks with the given names, or all; or CIFAR-10 if its folder is given."""
    if changes.folder is not None:
        by_name = {"cifar": cifar(changes.folder)}
    else:
        by_name = {name: TASKS[name] for name in names or TASKS}
    return {
        key: task._replace(
            steps=changes.steps or task.steps,
            rate=changes.rates * task.rate,
            adam_rate=changes.rates * task.adam_rate,
        )
        for key, task in by_name.items()
    }
