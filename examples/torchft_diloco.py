"""Train a small GPT with DiLoCo under torchft's manager, while workers leave and join.

    python -m examples.torchft_diloco

Needs torch and torchft. Worker 1 is killed after two exchanges. Worker 0 continues alone, until
worker 2 joins.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Sequence
from datetime import timedelta
from threading import Barrier

import click
import torch
import torch.distributed as dist
import torch.multiprocessing
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer

import gcodec.torch
from examples.convergence.tasks import error
from examples.small_gpt import TASK

_TIMEOUT = timedelta(seconds=60)
_EXCHANGES_OF_VICTIM = 2


def train(
    worker: int,
    lighthouse: str,
    codec: str,
    exchanges: int,
    period: int,
    meetings: Sequence[Barrier],
) -> None:
    """Train one worker until the group has made a number of exchanges."""
    torch.set_num_threads(1)
    torch.manual_seed(worker)
    model = TASK.model()
    inner = torch.optim.AdamW(model.parameters(), lr=TASK.adam_rate)
    outer = torch.optim.SGD(model.parameters(), lr=TASK.rate, momentum=0.6, nesterov=True)
    batches = TASK.batches(0, worker, 3)
    meetings[max(0, worker - 1)].wait()  # workers 0 and 1 start together

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    group = ProcessGroupGloo(timeout=_TIMEOUT)
    manager = Manager(
        pg=group,
        min_replica_size=1,
        use_async_quorum=False,
        # DiLoCo sends its own state to workers that join, so torchft sends none.
        state_dict=dict,
        load_state_dict=lambda state: None,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        hostname="localhost",
        quorum_timeout=_TIMEOUT,
        max_retries=3,
    )
    communicator = diloco = None
    while diloco is None or diloco.outer_step < exchanges:
        manager.start_quorum()
        if manager.errored():  # the members did not reach each other
            manager.should_commit()
            continue
        try:
            if communicator is None or communicator.group is not group.parent:
                communicator = gcodec.torch.TorchCommunicator(group)
                if diloco is None:
                    diloco = gcodec.torch.DiLoCo(
                        model, outer, codec, every=period, communicator=communicator
                    )
                else:
                    diloco.regroup(communicator)
            if worker == 1 and diloco.outer_step == _EXCHANGES_OF_VICTIM:
                os.kill(os.getpid(), signal.SIGKILL)
            for _ in range(period):
                inner.zero_grad()
                loss = error(model, *next(batches))
                loss.backward()
                inner.step()
                diloco.step()
        except (gcodec.GcodecError, RuntimeError) as failure:
            print(f"worker {worker}: {failure}", flush=True)
            manager.report_error(failure)
        if manager.should_commit():
            others = "1 other" if communicator.size == 2 else f"{communicator.size - 1} others"
            print(
                f"worker {worker}: exchange {diloco.outer_step} with {others}, "
                f"loss {float(loss.detach()):.3f}",
                flush=True,
            )
            if worker == 0 and diloco.outer_step == _EXCHANGES_OF_VICTIM + 2:
                meetings[1].wait()  # now worker 2 joins
    digest = hashlib.sha256()
    for tensor in diloco.state_dict()["outer"].values():
        digest.update(tensor.numpy().tobytes())
    print(f"worker {worker}: outer parameters {digest.hexdigest()[:16]}, {diloco}", flush=True)
    manager.shutdown(wait=False)


@click.command()
@click.option("--exchanges", type=click.IntRange(6), default=12, show_default=True)
@click.option("--codec", default="ecsq:bits=1", show_default=True)
@click.option(
    "--every", "period", default=15, show_default=True, help="Inner steps between exchanges."
)
def main(exchanges: int, codec: str, period: int) -> None:
    """Start the workers on this machine."""
    server = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=60_000)
    address = f"http://localhost:{server.address().rpartition(':')[2]}"
    context = torch.multiprocessing.get_context("spawn")
    meetings = [context.Barrier(2, timeout=120) for _ in range(2)]
    workers = [
        context.Process(target=train, args=(index, address, codec, exchanges, period, meetings))
        for index in range(3)
    ]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    server.shutdown()
    raise SystemExit(any(process.exitcode for process in (workers[0], workers[2])))


if __name__ == "__main__":
    main()
