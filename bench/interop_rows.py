"""Rows of the benchmark for the messages of other systems, next to PyTorch's own operators.

`CALLS` declares the rows of all peers. What a peer sends is a flat tensor, a matrix, the parts
that BytePS cuts a tensor into, or new weights and their base.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from bench.kernel_rows import Row

COLUMNS = 128
_PART = 1 << 20  # elements of BytePS's parts
_GROUP = 2048  # elements of DeepSpeed's groups, if they divide the tensor

Sent = Literal["flat", "matrix", "part", "weights"]


class Call(NamedTuple):
    """Two rows: `encode` and `decode` of a module of `gcodec.interop`.

    Attributes
    ----------
    peer : str
        Name of the module.
    title : str
        What the names of the rows have after that of the peer.
    sent : str
        What is encoded.
    both : mapping
        Keywords of both functions. A function gets the tensor, and returns the value.
    encoding, decoding : mapping
        Keywords of one of them, likewise.
    """

    peer: str
    title: str = ""
    sent: Sent = "matrix"
    both: Mapping[str, Any] = {}
    encoding: Mapping[str, Any] = {}
    decoding: Mapping[str, Any] = {}

    @property
    def name(self) -> str:
        """Name of the peer, and the title."""
        return f"{self.peer} {self.title}".strip()

    @property
    def module(self) -> Any:
        """The module of the peer."""
        return importlib.import_module(f"gcodec.interop.{self.peer}")

    def inputs(self, x: np.ndarray) -> tuple[Any, ...]:
        """Return what is encoded for a tensor: the tensor, or new weights and their base."""
        return _weights(x) if self.sent == "weights" else (x,)

    def encode(self, inputs: tuple[Any, ...]) -> Any:
        """Return the message for such inputs."""
        return self.module.encode(*inputs, **_named({**self.both, **self.encoding}, inputs[0]))

    def decode(self, message: Any, inputs: tuple[Any, ...]) -> Any:
        """Decode a message for such inputs."""
        keywords = _named({**self.both, **self.decoding}, inputs[0])
        return self.module.decode(message, *inputs[1:], **keywords)


def _shape(x: np.ndarray) -> tuple[int, ...]:
    return x.shape


def _groups(x: np.ndarray) -> int:
    return x.size // math.gcd(x.size, _GROUP)


def _generator(x: np.ndarray) -> Any:
    from gcodec.interop import byteps

    return byteps.XorShift128Plus(1)


_SHAPE: Mapping[str, Any] = {"shape": _shape}


def _byteps(title: str, encoding: Mapping[str, Any], **both: Any) -> Call:
    compressor = title.split()[0]
    return Call("byteps", title, "part", {"compressor": compressor, **both}, encoding, _SHAPE)


def _caffe2(bits: int, scale_dtype: str) -> Call:
    both = {"bits": bits, "scale_dtype": scale_dtype}
    return Call("caffe2", f"{bits} bits, {scale_dtype}", both=both)


CALLS = (
    *(Call("mxnet", t, "flat", {"type": t}, decoding=_SHAPE) for t in ("2bit", "1bit")),
    _byteps("onebit", {"scaling": True}),
    _byteps("topk", {}, k=0.01),
    _byteps("randomk", {"seed": _generator}, k=0.01),
    _byteps("dithering", {"seed": _generator}, k=4),
    _byteps("dithering natural", {"seed": _generator}, k=4, partition="natural"),
    _byteps("dithering l2", {"seed": _generator, "normalize": "l2"}, k=127),
    *(_caffe2(*each) for each in ((8, "float32"), (8, "float16"), (4, "float16"), (2, "float16"))),
    *(
        Call("torchao", name, both={"format": name})
        for name in ("mxfp8e4m3", "mxfp8e5m2", "mxfp6e2m3", "mxfp6e3m2", "mxfp4", "nvfp4")
    ),
    *(
        Call("bitsandbytes", kind, both={"kind": kind}, decoding=_SHAPE)
        for kind in ("nf4", "fp4", "dynamic8")
    ),
    *(
        Call("hivemind", name, encoding={"compression": name})
        for name in (
            *("NONE", "FLOAT16", "MEANSTD_16BIT"),
            *("UNIFORM_8BIT", "QUANTILE_8BIT", "BLOCKWISE_8BIT"),
        )
    ),
    *(
        Call("deepspeed", f"{bits} bits", "flat", {"bits": bits}, {"groups": _groups})
        for bits in (8, 4)
    ),
    Call("torchft", decoding=_SHAPE),
    Call("templar", decoding=_SHAPE),
    Call("demo"),
    *(Call("psyche", value, encoding={"value": value}) for value in ("full", "sign")),
    Call("panthalia"),
    Call("grail", sent="weights"),
    *(Call("trl", index, "weights", encoding={"index": index}) for index in ("gap", "raw")),
    *(Call("nemo_rl", o, "weights", encoding={"operation": o}) for o in ("xor", "overwrite")),
)


def interop_rows(x: np.ndarray) -> list[Row]:
    """Return benchmark rows for (n,) float32 elements."""
    matrix = x[: x.size // COLUMNS * COLUMNS].reshape(-1, COLUMNS)
    tensors: dict[Sent, list[np.ndarray]] = {
        "flat": [x],
        "matrix": [matrix],
        "part": np.array_split(x, -(-x.size // _PART)),
        "weights": [matrix],
    }
    table = [row for call in CALLS for row in _rows_of(call, tensors[call.sent])]
    return [*table, *_torch(matrix)]


def _rows_of(call: Call, tensors: list[np.ndarray]) -> list[Row]:
    """Return the rows of a call; nothing is encoded before a row runs."""
    inputs = functools.cache(lambda: [call.inputs(x) for x in tensors])

    def encode() -> list[Any]:
        return [call.encode(each) for each in inputs()]

    messages = functools.cache(encode)

    def decode() -> list[Any]:
        return [call.decode(m, each) for m, each in zip(messages(), inputs(), strict=True)]

    return _pair(call.name, encode, decode)


def _named(keywords: Mapping[str, Any], x: np.ndarray) -> dict[str, Any]:
    """Return keywords for a tensor."""
    return {name: each(x) if callable(each) else each for name, each in keywords.items()}


def _weights(x: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return new bfloat16 weights, of which one in a hundred has changed, and their base."""
    import ml_dtypes

    base = x.astype(ml_dtypes.bfloat16)
    bits = base.view(np.uint16).copy()
    bits.reshape(-1)[::100] ^= 1
    return {"w": bits.view(ml_dtypes.bfloat16)}, {"w": base}


def _pair(name: str, encode: Callable[[], Any], decode: Callable[[], Any]) -> list[Row]:
    return [
        Row(f"interop: {name}, encode", encode),
        Row(f"interop: {name}, decode", decode),
    ]


def _torch(matrix: np.ndarray) -> list[Row]:
    """Return the rows of PyTorch's operators, whose rows caffe2 has."""
    if not importlib.util.find_spec("torch"):
        return []
    import torch

    torch.set_num_threads(1)
    tensor, table = torch.from_numpy(matrix), []
    for name in ("byte", "4bit", "2bit"):
        pack = getattr(torch.ops.quantized, f"embedding_bag_{name}_prepack")
        unpack = getattr(torch.ops.quantized, f"embedding_bag_{name}_unpack")
        packed = functools.cache(lambda pack=pack: pack(tensor))
        table += _pair(
            f"torch {name}",
            lambda pack=pack: pack(tensor),
            lambda unpack=unpack, packed=packed: unpack(packed()),
        )
    return table
