"""Cut a call's data into chunks: equal where possible, else by borders on whole elements."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call
from simulator.collectives.schedule import ChunkMap
from simulator.collectives.spec import part_bytes

__all__ = ["borders", "channel_major", "part_major", "pipeline_pieces", "whole"]

IntArray = NDArray[np.int64]


def borders(size_bytes: int, pieces: int, element_bytes: int = 1) -> IntArray:
    """Return the borders of *pieces* nearly equal pieces of a buffer.

    Sizes differ by at most one element; the larger pieces come first.  Bytes beyond the last
    whole element go to the last piece.

    Returns
    -------
    numpy.ndarray
        Shape (pieces + 1,), bytes.

    Examples
    --------
    >>> borders(10, 4).tolist(), borders(10, 4, element_bytes=4).tolist()
    ([0, 3, 6, 8, 10], [0, 4, 8, 8, 10])
    """
    elements, _ = divmod(size_bytes, element_bytes)
    each, larger = divmod(elements, pieces)
    index = np.arange(pieces + 1, dtype=np.int64)
    result = (index * each + np.minimum(index, larger)) * element_bytes
    result[-1] = size_bytes
    return result


def whole(call: Call, pieces: int) -> ChunkMap:
    """Cut the buffer of a one-part collective (all_reduce, broadcast, reduce) into *pieces*."""
    if call.size_bytes % (pieces * call.element_bytes) == 0:
        return ChunkMap(n_chunks=pieces, uniform_bytes=call.size_bytes // pieces)
    return ChunkMap(
        n_chunks=pieces, offset_bytes=borders(call.size_bytes, pieces, call.element_bytes)
    )


def part_major(call: Call, pieces: int = 1) -> ChunkMap:
    """Cut each part into *pieces* chunks; chunk = part × pieces + piece."""
    parts = part_bytes(call)
    n_parts = _n_parts(call)
    first = int(parts[0])
    if first % (pieces * call.element_bytes) == 0 and (parts == first).all():
        return ChunkMap(n_chunks=n_parts * pieces, uniform_bytes=first // pieces)
    sizes = parts if pieces == 1 else _piece_sizes(parts, pieces, call.element_bytes).ravel()
    # all_to_all of equal rows: the sizes repeat with every source, so one row is enough.
    return ChunkMap(n_chunks=n_parts * pieces, offset_bytes=_cumulated(sizes))


def channel_major(call: Call, pieces: int, order: IntArray) -> ChunkMap:
    """Cut each part into *pieces*; chunk = piece × n_parts + position of the part in its row.

    Parameters
    ----------
    call
        A collective with one part per rank.
    pieces
        Pieces per part (channels, or channels × pipeline pieces).
    order
        Part at each position, shape (pieces, n_parts) or (1, n_parts) for all alike.
    """
    parts = part_bytes(call)
    n_parts = len(parts)
    part = np.broadcast_to(order, (pieces, n_parts)).ravel()
    first = int(parts[0])
    if first % (pieces * call.element_bytes) == 0 and (parts == first).all():
        return ChunkMap(n_chunks=n_parts * pieces, uniform_bytes=first // pieces, part=part)
    sizes = _piece_sizes(parts, pieces, call.element_bytes)
    piece = np.repeat(np.arange(pieces), n_parts)
    return ChunkMap(
        n_chunks=n_parts * pieces, offset_bytes=_cumulated(sizes[part, piece]), part=part
    )


def pipeline_pieces(size_bytes: float, streams: int, pipeline_bytes: int) -> int:
    """Return how many pieces each of *streams* equal streams is cut into, at least one."""
    return max(1, -(-int(size_bytes) // (streams * pipeline_bytes)))


def _n_parts(call: Call) -> int:
    n = call.world_size
    return n * n if call.collective in ("all_to_all", "all_to_allv") else n


def _piece_sizes(parts: IntArray, pieces: int, element_bytes: int) -> IntArray:
    """Return the size of each piece of each part, shape (parts, pieces); as `borders`."""
    each, larger = np.divmod(parts // element_bytes, pieces)
    sizes = (each[:, None] + (np.arange(pieces) < larger[:, None])) * element_bytes
    sizes[:, -1] += parts % element_bytes
    return np.asarray(sizes)


def _cumulated(sizes: IntArray) -> IntArray:
    result = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=result[1:])
    return result
