"""Compressed data that others may have made: unfolded only as far as anyone needs."""

from __future__ import annotations

import zlib

MOST_BYTES = 2**28
"""That a file or a row of it may unfold to; the shipped tree has 20 MB."""
GZIP = 16 + zlib.MAX_WBITS


def inflated(data: bytes, form: int = zlib.MAX_WBITS, most: int = MOST_BYTES) -> bytes:
    """Raises ValueError where it is torn, or unfolds to more. `form`: of zlib's `wbits`."""
    unfolding = zlib.decompressobj(form)
    try:
        found = unfolding.decompress(data, most)
    except zlib.error as error:
        raise ValueError(f"it cannot be unfolded: {error}") from None
    if not unfolding.eof:
        raise ValueError(f"it is torn, or unfolds to more than {most} bytes")
    return found
