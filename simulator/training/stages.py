"""Layers on pipeline stages: equal numbers of blocks, the embedding first, the head last."""

from __future__ import annotations

from simulator.base.errors import Problem, ScenarioError
from simulator.models.model import Layer, Model

__all__ = ["block_counts", "split_layers"]


def block_counts(blocks: int, parts: int, *, uneven: bool) -> tuple[int, ...] | None:
    """Return the number of blocks of each part of a pipeline, or None where there is no rule.

    Notes
    -----
    Megatron-LM demands equal numbers, but can count the embedding and the loss as one block each
    (``--account-for-embedding-in-pipeline-split``, ``--account-for-loss-in-pipeline-split``): so
    the 126 blocks of Llama 3.1 405B fill 16 stages.  With `uneven` (DeepSpeed, torchtitan) counts
    may differ by one; the last and the first part, which hold the head and the embedding, are the
    last to get one more.

    Examples
    --------
    >>> block_counts(126, 16, uneven=False)[0], block_counts(126, 16, uneven=False)[1]
    (7, 8)
    >>> block_counts(9, 4, uneven=True)
    (2, 3, 2, 2)
    >>> block_counts(9, 4, uneven=False)
    """
    if blocks % parts == 0:
        return (blocks // parts,) * parts
    if parts > 1 and (blocks + 2) % parts == 0 and blocks + 2 >= parts:
        counts = [(blocks + 2) // parts] * parts
        counts[0] -= 1
        counts[-1] -= 1
        return tuple(counts)
    if parts > 1 and (blocks + 1) % parts == 0 and blocks + 1 >= parts:
        counts = [(blocks + 1) // parts] * parts
        counts[-1] -= 1
        return tuple(counts)
    if not uneven or blocks < parts:
        return None
    counts = [blocks // parts] * parts
    by_need = [*range(1, parts - 1), 0, parts - 1]
    for part in by_need[: blocks % parts]:
        counts[part] += 1
    return tuple(counts)


def split_layers(
    model: Model, stages: int, virtual: int, *, uneven: bool
) -> tuple[tuple[tuple[Layer, ...], ...], ...]:
    """Return the layers of each chunk of each stage.

    Chunk c of stage s is part c x stages + s of the model (Megatron-LM's interleaved layout).

    Raises
    ------
    ScenarioError
        Where the blocks do not divide.
    """
    layers = model.layers
    blocks = [index for index, layer in enumerate(layers) if layer.kind == "block"]
    parts = stages * virtual
    counts = block_counts(len(blocks), parts, uneven=uneven)
    if counts is None:
        raise ScenarioError(
            Problem(message=f"{len(blocks)} blocks do not divide over {parts} pipeline parts")
        )
    borders = [0]
    done = 0
    for count in counts[:-1]:
        done += count
        borders.append(blocks[done] if done < len(blocks) else blocks[-1] + 1)
    borders.append(len(layers))
    pieces = [layers[borders[i] : borders[i + 1]] for i in range(parts)]
    return tuple(
        tuple(pieces[chunk * stages + stage] for chunk in range(virtual)) for stage in range(stages)
    )
