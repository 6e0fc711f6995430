"""Panthalia's compression as published, in NumPy: the steps of its ``demo.py``.

Written from the description of the algorithm, without gcodec. All arithmetic is float32, including
the table of cosines. Among equal magnitudes the original selects any; this module selects the
first.
"""

from __future__ import annotations

import numpy as np

Message = dict[str, np.ndarray]
F = np.float32


def dct_matrix(c: int) -> np.ndarray:
    """Return the DCT-II, rows of frequencies, from float32 cosines of float32 arguments."""
    n = np.arange(c, dtype=F)
    matrix = np.cos(F(np.pi) * (n + F(0.5)) * n[:, None] / F(c)).astype(F)
    matrix[0] *= F(1 / np.sqrt(2))
    return matrix * F(np.sqrt(2 / c))


def float_to_int8(v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Map each row's [min, max] to [−128, 127]."""
    least = v.min(axis=1, keepdims=True)
    scale = np.maximum(v.max(axis=1, keepdims=True) - least, F(1e-8)) / F(255)
    q = np.clip(np.rint((v - least) / scale) - F(128), -128, 127).astype(np.int8)
    return q, scale[:, 0], least[:, 0]


def int8_to_float(q: np.ndarray, scale: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Undo `float_to_int8`."""
    return (q.astype(F) + F(128)) * scale[:, None] + least[:, None]


def encode(
    x: np.ndarray, residual: np.ndarray | None, c: int, k: int
) -> tuple[Message, np.ndarray]:
    """Return the message of x plus the residual, and the new residual."""
    x = x.astype(F)
    if residual is not None:
        x = x + residual
    flat = x.reshape(-1)
    pad = -flat.size % (c * c)
    blocks = np.concatenate([flat, np.zeros(pad, F)]).reshape(-1, c, c)
    d = dct_matrix(c)
    freq = (d @ blocks @ d.T).reshape(len(blocks), c * c)
    idxs = np.argsort(-np.abs(freq), axis=1, kind="stable")[:, :k].astype(np.int64)
    q, scale, least = float_to_int8(np.take_along_axis(freq, idxs, axis=1))
    message = {
        "freq_idxs": idxs,
        "freq_vals_int8": q,
        "freq_scales": scale,
        "freq_zero_points": least,
        "chunk_shape": np.array([c, c]),
        "orig_shape": np.array(x.shape, np.int64),
        "pad_count": np.array(pad),
    }
    return message, x - decode(message)


def decode(message: Message) -> np.ndarray:
    """Return the decoded values of a message."""
    c = int(message["chunk_shape"][0])
    v = int8_to_float(
        *(message[f"freq_{name}"] for name in ("vals_int8", "scales", "zero_points"))
    )
    freq = np.zeros((len(v), c * c), F)
    np.put_along_axis(freq, message["freq_idxs"], v, axis=1)
    d = dct_matrix(c)
    flat = (d.T @ freq.reshape(-1, c, c) @ d).reshape(-1)
    shape = tuple(message["orig_shape"])
    return flat[: flat.size - int(message["pad_count"])].reshape(shape)
