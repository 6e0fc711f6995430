"""Checks that all ranks of a group were given the same arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gcodec.errors import ParameterError
from gcodec.training.communicator import Communicator


def check_agreement(communicator: Communicator, caller: str, values: Mapping[str, object]) -> None:
    """Raise `ParameterError` on every rank unless the values of all ranks are equal.

    Parameters
    ----------
    communicator : Communicator
    caller : str
        Name of the public function, for the error.
    values : mapping
        JSON types by name of the argument.
    """
    texts = communicator.all_gather(json.dumps(values).encode())
    gathered = [json.loads(text) for text in texts]
    for rank, others in enumerate(gathered):
        for name, expected in gathered[0].items():
            if others.get(name) != expected:
                raise ParameterError(
                    f"{caller}: the ranks differ: {name}={expected!r} on rank 0, "
                    f"{others.get(name)!r} on rank {rank}"
                )
