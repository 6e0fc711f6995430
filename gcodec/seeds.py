"""Seeds: one number for a run, a different one for every tensor, step and rank.

The same seed on all ranks or steps would correlate their rounding errors, which then add up
instead of averaging out.
"""

from __future__ import annotations

import hashlib

from gcodec.kernels.philox import check_seed


def derive_seed(seed: int, *, name: str, step: int = 0, rank: int = 0) -> int:
    """Derive the seed of one tensor's message.

    Parameters
    ----------
    seed : int
        Of the run, 0 to 2**64 - 1.
    name : str
        Of the tensor.
    step, rank : int
        From 0 to 2**64 - 1.

    Returns
    -------
    int
        The first 8 bytes, little-endian, of BLAKE2b over seed, step and rank as u64 and the name.
    """
    numbers = b"".join(check_seed(value).to_bytes(8, "little") for value in (seed, step, rank))
    digest = hashlib.blake2b(numbers + name.encode(errors="surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")
