"""Federated rounds in Flower's simulation runtime, with a client that damages its frames.

    python -m examples.federated --rounds 10

Needs ``flwr[simulation]``.
"""

from __future__ import annotations

import os
from typing import Any

import click
import numpy as np

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_DISABLE_DOCKER_CPU_WARNING", "1")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

import gcodec
import gcodec.flower

KEY = b"a secret of the clients and the server"
TRUTH = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)


def damage(message: Message, context: Context, call_next: Any) -> Message:
    """Flip a bit of each frame that one of the clients sends."""
    reply = call_next(message, context)
    if int(context.node_config["partition-id"]) == 0:
        for record in reply.content.array_records.values():
            for name, array in record.items():
                data = bytearray(array.data)
                data[len(data) // 2] ^= 1
                record[name] = Array(array.dtype, array.shape, array.stype, bytes(data))
    return reply


def client(codec: str) -> ClientApp:
    """Return an app that fits a linear map to samples of its own."""
    app = ClientApp(mods=[damage, gcodec.flower.FrameMod(codec, key=KEY)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        rng = np.random.default_rng([int(context.node_config["partition-id"]), 1])
        x = rng.standard_normal((256, 64)).astype(np.float32)
        weight = message.content["arrays"]["weight"].numpy()
        for _ in range(5):
            weight = weight - np.float32(0.3 / len(x)) * (x.T @ (x @ weight - x @ TRUTH))
        records = {
            "arrays": ArrayRecord({"weight": Array(weight)}),
            "metrics": MetricRecord({"num-examples": len(x)}),
        }
        return Message(RecordDict(records), reply_to=message)

    return app


def server(rounds: int) -> ServerApp:
    """Return an app that averages the clients' arrays with a strategy of Flower."""
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Context) -> None:
        frames = gcodec.flower.FrameGrid(grid, key=KEY, max_norm=100)
        start = ArrayRecord({"weight": Array(np.zeros_like(TRUTH))})
        result = FedAvg(fraction_evaluate=0.0).start(frames, start, num_rounds=rounds)
        error = result.arrays["weight"].numpy() - TRUTH
        dense = 4 * rounds * TRUTH.nbytes
        print(f"nmse {float((error**2).sum() / (TRUTH**2).sum()):.1e} after {rounds} rounds")
        print(f"{frames.received_nbytes:,} bytes received in place of {dense:,}")
        nodes, reasons = zip(*frames.dropped, strict=True)
        print(f"{len(nodes)} replies of {len(set(nodes))} client dropped: {reasons[0]}")

    return app


@click.command()
@click.option("--rounds", default=10, show_default=True)
@click.option("--codec", default="ecsq:bits=2", show_default=True)
def main(rounds: int, codec: str) -> None:
    """Run four clients on this machine."""
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server(rounds), client(codec), num_supernodes=4, backend_config=resources)


if __name__ == "__main__":
    main()
