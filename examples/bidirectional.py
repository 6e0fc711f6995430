"""Compression both ways: clients send gradients, a server answers with changes of the weights.

As in Panthalia, and here with gcodec's frames: each client adds what its last message left out to
its gradient, and sends the largest DCT coefficients of each chunk. The server takes the mean, lets
AdamW make a step of it, and sends what that changes, compressed as well, with a residual of its
own. All clients, and the server's own copy, apply what was sent: so they stay equal, bit for bit.

Run: python examples/bidirectional.py
"""

from __future__ import annotations

import numpy as np

import gcodec

CLIENTS, STEPS = 4, 150
CODEC = "dct8:chunk=16x16,k=16,layout=tiles"


class AdamW:
    """The optimiser of Loshchilov and Hutter, for one matrix."""

    def __init__(self, shape: tuple[int, ...], rate: float, decay: float = 0.01) -> None:
        self.rate, self.decay, self.step = rate, decay, 0
        self.mean, self.square = np.zeros((2, *shape), np.float32)

    def change(self, weights: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return what to add to the weights."""
        self.step += 1
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient**2 - self.square)
        mean = self.mean / (1 - 0.9**self.step)
        root = np.sqrt(self.square / (1 - 0.999**self.step)) + 1e-8
        return (-self.rate * (mean / root + self.decay * weights)).astype(np.float32)


class Client:
    """Weights, data of its own, and the memory of what was not sent."""

    def __init__(self, rank: int, weights: np.ndarray, truth: np.ndarray) -> None:
        rng = np.random.default_rng(rank)
        self.weights = weights.copy()
        self.inputs = rng.standard_normal((256, len(truth)), np.float32)
        noise = 0.1 * rng.standard_normal((256, truth.shape[1]), np.float32)
        self.outputs = self.inputs @ truth + noise
        self.feedback = gcodec.Feedback(CODEC, rank=rank)

    def errors(self) -> np.ndarray:
        """Return the differences of what the weights say from what is."""
        return self.inputs @ self.weights - self.outputs

    def send(self) -> bytes:
        """Compress the gradient of the mean of the squared errors."""
        return self.feedback.compress("weights", self.inputs.T @ self.errors() / 128)

    def receive(self, frame: bytes) -> None:
        """Apply a change of the weights."""
        gcodec.decode_add(frame, self.weights)


class Server:
    """The weights as the optimiser has them, and as all clients have them."""

    def __init__(self, weights: np.ndarray) -> None:
        self.shared = weights.copy()
        self.optimiser = AdamW(weights.shape, rate=0.03)
        self.feedback = gcodec.Feedback(CODEC)

    def answer(self, frames: list[bytes]) -> bytes:
        """Take the mean of what clients sent, make a step, compress it."""
        mean = np.zeros_like(self.shared)
        for frame in frames:  # in the order of ranks
            gcodec.decode_add(frame, mean, 1 / len(frames))
        frame = self.feedback.compress("weights", self.optimiser.change(self.shared, mean))
        gcodec.decode_add(frame, self.shared)
        return frame


def main() -> None:
    """Train, and print the loss, the bytes, and whether all have the same weights."""
    rng = np.random.default_rng(99)
    truth = rng.standard_normal((48, 40), np.float32)
    start = np.zeros_like(truth)
    clients = [Client(rank, start, truth) for rank in range(CLIENTS)]
    server = Server(start)
    up = down = 0
    for step in range(STEPS):
        frames = [client.send() for client in clients]
        answer = server.answer(frames)
        for client in clients:
            client.receive(answer)
        up, down = up + len(frames[0]), down + len(answer)
        if step % 50 == 0 or step == STEPS - 1:
            loss = np.mean([np.mean(client.errors() ** 2) for client in clients])
            print(f"step {step:3}   loss {loss:.4f}")
    copies = {client.weights.tobytes() for client in clients} | {server.shared.tobytes()}
    ratios = (truth.nbytes * STEPS / nbytes for nbytes in (up, down))
    print("up 1/{:.0f}, down 1/{:.0f} of float32".format(*ratios))
    print(f"distinct replicas: {len(copies)}")


if __name__ == "__main__":
    main()
