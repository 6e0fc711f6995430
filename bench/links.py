"""Nodes on this machine that are connected by links of a given rate and delay.

Each node is a network namespace with one TUN device. A process, the relay, reads the packets of
all devices and writes each of them to the device of its destination, after the packet has passed
the link of the sender, a delay, and the link of the receiver. Both links are full duplex and have
the same rate. Nothing is dropped: queues are as long as the windows of TCP. Acknowledgments do not
wait in them, as in the fair queues of Linux (fq_codel). The packets are real ones, so the counters
of the devices show what a network would carry, in frames of 9000 bytes.

This needs root on Linux, the command ``ip``, and ``/dev/net/tun``. The namespaces have no names:
they vanish with the last process in them, however it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import multiprocessing
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DEVICE = "gcwire"
MTU = 9000
_TUN = Path("/dev/net/tun")
_CLONE_NEWNET, _PR_SET_PDEATHSIG = 0x40000000, 1
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 1, 0x1000
_SETTINGS = {
    # Idle connections keep their windows, as is usual between machines that train together.
    "tcp_slow_start_after_idle": "0",
    "tcp_congestion_control": "cubic",
    "tcp_no_metrics_save": "1",
    # Windows are open from the start. They are short enough for queues below the timeouts of TCP.
    "tcp_rmem": "4096 4194304 4194304",
    "tcp_wmem": "4096 1048576 1048576",
}
_ROUTE = "initcwnd 1000 initrwnd 1000"  # packets of the windows of a new connection
_TICK = 4e-4  # seconds that the relay sleeps, so that the ranks have the processor
_PACKETS = 32  # that the relay reads from a device before it looks at the others
_FORK = multiprocessing.get_context("fork")  # children inherit devices and namespaces


def missing() -> str:
    """Return the reason why this machine cannot have such links, or an empty text."""
    if sys.platform != "linux":
        return "network namespaces exist on Linux only"
    if os.geteuid():
        return "network namespaces need root"
    if not shutil.which("ip"):
        return "the command ip is missing"
    if not os.access(_TUN, os.R_OK | os.W_OK):
        return f"{_TUN} is missing"
    try:
        with _own_namespace():
            _unshare()
            os.close(_open_device())
    except OSError as error:
        return f"this machine allows no network namespaces or TUN devices ({error})"
    return ""


class Network:
    """Nodes, and a relay that connects them.

    Attributes
    ----------
    nodes : int
    """

    def __init__(self, namespaces: Sequence[int], shape: Any, busy: Any) -> None:
        self.nodes = len(namespaces)
        self._namespaces, self._shape, self._busy = namespaces, shape, busy

    def enter(self, node: int) -> None:
        """Move this thread, and all threads that it starts later, to a node."""
        _setns(self._namespaces[node])

    def shape(self, rate: float, delay: float) -> None:
        """Set the bits per second of all links, or 0 for no limit, and the delay in seconds."""
        self._shape[:] = [rate, delay]

    @property
    def relay_seconds(self) -> float:
        """Processor seconds that the relay has taken so far."""
        return float(self._busy.value)


@contextlib.contextmanager
def connected(nodes: int) -> Iterator[Network]:
    """Make nodes with addresses 10.201.0.1 and so on; yield their network."""
    with contextlib.ExitStack() as stack:
        namespaces, devices = [], []
        with _own_namespace():
            for node in range(nodes):
                _unshare()
                namespaces.append(os.open(_namespace_path(), os.O_RDONLY))
                stack.callback(os.close, namespaces[-1])
                devices.append(_open_device())
                stack.callback(os.close, devices[-1])
                for line in (
                    "link set lo up",
                    f"addr add 10.201.0.{node + 1}/24 dev {DEVICE}",
                    f"link set {DEVICE} mtu {MTU} txqueuelen 10000 up",
                    f"route change 10.201.0.0/24 dev {DEVICE} {_ROUTE}",
                ):
                    subprocess.run(["ip", *line.split()], check=True)
                for name, value in _SETTINGS.items():
                    # What a kernel lacks keeps its default.
                    with contextlib.suppress(OSError):
                        Path("/proc/sys/net/ipv4", name).write_text(value)
        shape, busy = _FORK.Array("d", 2, lock=False), _FORK.Value("d", 0.0, lock=False)
        relay = _FORK.Process(target=_relay, args=(devices, shape, busy), daemon=True)
        relay.start()
        stack.callback(relay.join)
        stack.callback(relay.kill)
        yield Network(namespaces, shape, busy)


def end_with_parent() -> None:
    """Kill this process as soon as the process that started it ends, however that happens."""
    _check(_libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))


def sent_nbytes(device: str) -> int:
    """Return the bytes that a device of this thread's namespace has sent, headers included."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    [numbers] = [line.split(":")[1] for line in lines if line.strip().startswith(f"{device}:")]
    return int(numbers.split()[8])


def _relay(devices: Sequence[int], shape: Any, busy: Any) -> None:
    """Forward packets until this process is killed."""
    end_with_parent()
    with contextlib.suppress(OSError):  # punctual also while ranks compute
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    for device in devices:
        os.set_blocking(device, False)
    numbers = {device: number for number, device in enumerate(devices)}
    links = _Links(len(devices))
    waiting: list[tuple[float, int, int, bytes]] = []  # time, order, device and packet
    order, last = 0, 0.0
    poll = select.epoll()
    for device in devices:
        poll.register(device, select.EPOLLIN)
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, device, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # the namespace is about to vanish
                os.write(device, packet)
        if now - last > 0.05:
            busy.value, last = time.process_time(), now
        # epoll rounds up to milliseconds; select does not.
        wait = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else 0.05
        select.select([poll.fileno()], [], [], wait)
        rate, delay = shape
        if rate:
            time.sleep(_TICK)
        for device, _ in poll.poll(0):
            for _ in range(_PACKETS):
                try:
                    packet = os.read(device, 65536)
                except BlockingIOError:
                    break
                now = time.monotonic()
                source, target = numbers[device], packet[19] - 1  # last byte of the destination
                if packet[0] >> 4 != 4 or not 0 <= target < len(devices):
                    continue  # such as the neighbor discovery of IPv6
                due = delay + (links.passed(packet, source, target, rate, now) if rate else now)
                order += 1
                heapq.heappush(waiting, (due, order, devices[target], packet))


class _Links:
    """The times at which the links of all nodes are idle again, in both directions."""

    def __init__(self, nodes: int) -> None:
        self._up, self._down = [0.0] * nodes, [0.0] * nodes

    def passed(self, packet: bytes, source: int, target: int, rate: float, now: float) -> float:
        """Return the time at which a packet of now will have passed two links, without delays."""
        up, down = self._up, self._down
        took = 8 * len(packet) / rate
        up[source] = max(now, up[source]) + took
        # The last bit of a packet leaves the link of the receiver after it has left that of the
        # sender, and after the packets before it.
        down[target] = max(up[source], down[target] + took)
        is_acknowledgment = len(packet) == 20 + 4 * (packet[32] >> 4)  # headers of IP and TCP only
        return now + took if is_acknowledgment else down[target]


def _open_device() -> int:
    """Create the TUN device in the namespace of this thread, and return its file descriptor."""
    device = os.open(_TUN, os.O_RDWR)
    try:
        fcntl.ioctl(
            device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI)
        )
    except OSError:
        os.close(device)
        raise
    return device


@contextlib.contextmanager
def _own_namespace() -> Iterator[None]:
    """Return to the namespace of this thread after the block."""
    own = os.open(_namespace_path(), os.O_RDONLY)
    try:
        yield
    finally:
        _setns(own)
        os.close(own)


def _namespace_path() -> str:
    return f"/proc/self/task/{threading.get_native_id()}/ns/net"


def _unshare() -> None:
    _check(_libc().unshare(_CLONE_NEWNET))


def _setns(namespace: int) -> None:
    _check(_libc().setns(namespace, _CLONE_NEWNET))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
