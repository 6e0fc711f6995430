"""Compression in both directions: clients send gradients, a server answers with weight updates.

The protocol is that of Panthalia, here with gcodec's frames. Each client adds the residual of its
last message to its gradient, and sends the largest DCT coefficients of each chunk. The server
averages the gradients, makes an AdamW step, and sends the weight update, also compressed and with
a residual of its own. All clients, and the server's replica, apply the decoded update, so their
weights stay equal, bit for bit.

Run: python examples/bidirectional.py
"""

from __future__ import annotations

import numpy as np

import gcodec

CLIENTS, STEPS = 4, 150
CODEC = "dct8:chunk=16x16,k=16,layout=tiles"


class AdamW:
    """The AdamW optimizer of Loshchilov and Hutter for one matrix."""

    def __init__(self, shape: tuple[int, ...], rate: float, decay: float = 0.01) -> None:
        self.rate, self.decay, self.step = rate, decay, 0
        self.mean, self.square = np.zeros((2, *shape), np.float32)

    def change(self, weights: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the update to add to the weights."""
        self.step += 1
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient**2 - self.square)
        mean = self.mean / (1 - 0.9**self.step)
        root = np.sqrt(self.square / (1 - 0.999**self.step)) + 1e-8
        return (-self.rate * (mean / root + self.decay * weights)).astype(np.float32)


class Client:
    """A client: its weights, its own data, and the residual of its messages."""

    def __init__(self, rank: int, weights: np.ndarray, truth: np.ndarray) -> None:
        rng = np.random.default_rng(rank)
        self.weights = weights.copy()
        self.inputs = rng.standard_normal((256, len(truth)), np.float32)
        noise = 0.1 * rng.standard_normal((256, truth.shape[1]), np.float32)
        self.outputs = self.inputs @ truth + noise
        self.feedback = gcodec.Feedback(CODEC, rank=rank)

    def errors(self) -> np.ndarray:
        """Return the differences between predictions and targets."""
        return self.inputs @ self.weights - self.outputs

    def send(self) -> bytes:
        """Compress the gradient of the mean squared error."""
        return self.feedback.compress("weights", self.inputs.T @ self.errors() / 128)

    def receive(self, frame: bytes) -> None:
        """Apply an update of the weights."""
        gcodec.decode_add(frame, self.weights)


class Server:
    """The server: the exact weights of the optimizer, and the replica of the clients' weights."""

    def __init__(self, weights: np.ndarray) -> None:
        self.shared = weights.copy()
        self.optimizer = AdamW(weights.shape, rate=0.03)
        self.feedback = gcodec.Feedback(CODEC)

    def answer(self, frames: list[bytes]) -> bytes:
        """Average the clients' gradients, make an optimizer step, and compress the update."""
        mean = gcodec.decode_sum(frames, scale=1 / len(frames))  # in the order of ranks
        frame = self.feedback.compress("weights", self.optimizer.change(self.shared, mean))
        gcodec.decode_add(frame, self.shared)
        return frame


def main() -> None:
    """Train, and print the loss, the bytes, and the number of distinct replicas."""
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
