"""Coding speeds of machines: a table of measurements, and documents of ``gcodec bench --json``.

``machines.csv`` contains a row for each machine and codec, with the source of its figures. A speed
belongs to tensors of the size that was measured, because small tensors take longer per value.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gcodec.errors import ParameterError
from gcodec.wire.kinds import check_type

_TABLE = Path(__file__).with_name("machines.csv")
_SCHEMA = "gcodec.bench/1"


class CodingSpeed(NamedTuple):
    """Speed of a machine with one codec.

    Attributes
    ----------
    encode, decode : float
        Values per second.

    Examples
    --------
    >>> CodingSpeed(encode=2e9, decode=4e9)
    CodingSpeed(encode=2000000000.0, decode=4000000000.0)
    """

    encode: float
    decode: float


class Machine(NamedTuple):
    """A machine whose coding speeds were measured.

    Attributes
    ----------
    name : str
        Name of the machine, or of the file with its measurements.
    source : str
        Origin of the figures: a command, a machine and a date.
    speeds : dict of str to CodingSpeed
        Coding speed by the spec of a codec.

    Examples
    --------
    >>> machine = Machine("node", "a stopwatch", {"sign": CodingSpeed(2e9, 4e9)})
    >>> machine.speeds["sign"].decode
    4000000000.0
    """

    name: str
    source: str
    speeds: dict[str, CodingSpeed]

    def rows(self) -> list[dict[str, str]]:
        """Return rows of ``machines.csv`` with these speeds, in GB of float32 per second.

        Examples
        --------
        >>> Machine("node", "a stopwatch", {"sign": CodingSpeed(2e9, 4e9)}).rows()[0]["codec"]
        'sign'
        """
        return [
            {
                "machine": self.name,
                "codec": codec,
                "encode_gb_per_s": f"{4e-9 * speed.encode:.3g}",
                "decode_gb_per_s": f"{4e-9 * speed.decode:.3g}",
                "source": self.source,
            }
            for codec, speed in self.speeds.items()
        ]


def machines() -> dict[str, Machine]:
    """Return the machines of the table by their names.

    Examples
    --------
    >>> sorted(machines())
    ['epyc-zen4', 'h100']
    """
    listed: dict[str, Machine] = {}
    with open(_TABLE, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            machine = Machine(row["machine"], row["source"], {})
            # GB/s counts float32.
            rates = (1e9 / 4 * float(row[f"{way}_gb_per_s"]) for way in ("encode", "decode"))
            speeds = listed.setdefault(machine.name, machine).speeds
            speeds[row["codec"]] = CodingSpeed(*rates)
    return listed


def find_machine(name: str) -> Machine:
    """Return a machine of the table, or the one that a file of ``gcodec bench --json`` describes.

    Parameters
    ----------
    name : str
        Name of a machine, or path of a file that ends in ``.json``.

    Raises
    ------
    ParameterError
        If the table has no such machine, or the file is no document of ``gcodec bench``.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> sorted(find_machine("epyc-zen4").speeds)[:3]
    ['dct8', 'ecsq', 'ecsq:bits=1.0']
    """
    check_type("machine", name, str)
    if name.lower().endswith(".json"):
        return _read_document(Path(name))
    known = machines()
    if name not in known:
        allowed = f"{', '.join(known)}, or a .json file that gcodec bench --json printed"
        raise ParameterError.of("machine", name, allowed)
    return known[name]


def _read_document(path: Path) -> Machine:
    data = path.read_bytes()
    try:
        document = json.loads(data)
        if document["schema"] != _SCHEMA:
            raise ValueError
        nbytes = document["bytes"] / document["values"]
        speeds = {}
        for record in document["codecs"]:
            rates = (record[f"{way}_bytes_per_second"] / nbytes for way in ("encode", "decode"))
            speeds[str(record["codec"])] = CodingSpeed(*_checked(rates))
        source = f"gcodec bench {document['source']}, {document['processor']}"
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
        allowed = "a document that gcodec bench --json printed"
        raise ParameterError.of("machine", str(path), allowed) from None
    return Machine(str(path), source, speeds)


def _checked(rates: Iterable[float]) -> list[float]:
    """Return rates in values per second; raise `ValueError` if one of them is none."""
    listed = list(rates)
    if not all(1 <= rate < math.inf for rate in listed):
        raise ValueError
    return listed
