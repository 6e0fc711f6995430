"""Codes: reversible maps between integers and bits, and the coders that codecs share.

The public names are the codes, `parse` and `Bits`. The modules `coder`, `tabled`, `ranged`,
`positions` and `values` and the package `context` write and read the strings of codecs.

>>> from gcodec import entropy
>>> bits = entropy.parse("rice:k=3").encode([9, 0, 42])
>>> bits
Bits.from01('010011000000001010')
>>> entropy.parse("rice:k=3").decode(bits, 3)
(array([ 9,  0, 42], dtype=uint64), 18)
"""

from __future__ import annotations

from collections.abc import Mapping

from gcodec.entropy.bits import Bits
from gcodec.entropy.code import Code
from gcodec.entropy.huffman import Huffman
from gcodec.entropy.rans import RANS
from gcodec.entropy.universal import Delta, ExpGolomb, Gamma, Golomb, Omega, Rice, Unary
from gcodec.wire.params import parse_spec

__all__ = [
    "CODES",
    "RANS",
    "Bits",
    "Code",
    "Delta",
    "ExpGolomb",
    "Gamma",
    "Golomb",
    "Huffman",
    "Omega",
    "Rice",
    "Unary",
    "parse",
]

CODES: dict[str, type[Code]] = {
    code.name: code
    for code in (Omega, Gamma, Delta, Unary, Rice, Golomb, ExpGolomb, Huffman, RANS)
}


def parse(spec: str | Mapping[str, object] | Code) -> Code:
    """Return the code of a spec.

    Parameters
    ----------
    spec : str, mapping or Code
        ``"name:key=value"``, a mapping such as ``{"name": "rice", "k": 3}``, or a code, which is
        returned unchanged.

    Returns
    -------
    Code

    Raises
    ------
    ParameterError
        If the name, a key or a value is unknown.

    Examples
    --------
    >>> from gcodec import entropy
    >>> entropy.parse("golomb:b=10")
    Golomb(b=10)
    >>> str(entropy.parse({"name": "rice", "k": 0}))
    'rice'
    """
    return parse_spec("code", spec, Code, CODES)
