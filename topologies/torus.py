"""Torus: a router per node, joined to its neighbours in every dimension."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simulator.base.errors import Problem, TopologyError
from simulator.base.fields import option
from simulator.fabric.wiring import Ports, Wiring
from topologies.registry import NetworkOptions, start, topology, trunk_rate

__all__ = ["TorusOptions"]

MOST_DIMENSIONS = 6
"""Those of the Tofu interconnect (Ajima et al., CLUSTER 2018)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorusOptions(NetworkOptions):
    """Options of a torus."""

    shape: str | None = option(
        "text",
        None,
        doc="Nodes in each dimension, `4x4` or `4x4x2`. Default: the most even shape.",
    )
    dimensions: int = option(
        "count",
        3,
        minimum=1,
        maximum=MOST_DIMENSIONS,
        doc="Number of dimensions when `shape` is not given.",
    )


@topology(
    "torus",
    summary="a router per node in a 2-D or 3-D grid with wrap-around links",
    reference="Dally, Towles, Principles and Practices of Interconnection Networks (2004), ch. 5",
    options=TorusOptions,
)
def wire(ports: Ports, options: TorusOptions) -> Wiring:
    """Return the network; `trunk` is the rate of each link between neighbours.

    Notes
    -----
    In a dimension of two nodes the link and its wrap-around are one cable.  Bisection across the
    longest dimension k of N nodes: 2 N / k links for k > 2, N / 2 for k = 2.
    """
    builder = start(ports, options)
    shape = _shape(ports.n_nodes, options)
    routers = builder.switches("leaf", ports.n_nodes, [f"router{i}" for i in range(ports.n_nodes)])
    builder.attach(routers[ports.node], options.link)
    grid = routers.reshape(shape)
    for axis, size in enumerate(shape):
        if size > 1:
            # Of two nodes in a circle both would lead to the other: one cable is enough.
            here = grid if size > 2 else np.take(grid, [0], axis=axis)
            there = np.roll(grid, -1, axis=axis) if size > 2 else np.take(grid, [1], axis=axis)
            builder.connect(here.ravel(), there.ravel(), trunk_rate(ports, options))
    return builder.finish()


def _shape(nodes: int, options: TorusOptions) -> tuple[int, ...]:
    """Return the grid, checked against the number of nodes."""
    even = _most_even(nodes, options.dimensions)
    if options.shape is None:
        return even
    fits = "x".join(str(size) for size in even)
    if not re.fullmatch(r"\d+([x×]\d+)*", options.shape.replace(" ", "")):
        raise TopologyError(
            Problem(
                key="fabric.shape",
                message=f"{options.shape!r} is not a shape",
                allowed=f"numbers joined by x, such as {fits}",
            )
        )
    shape = tuple(int(part) for part in re.split("[x×]", options.shape.replace(" ", "")))
    if math.prod(shape) != nodes:
        raise TopologyError(
            Problem(
                key="fabric.shape",
                message=f"{options.shape} has {math.prod(shape)} places for {nodes} nodes",
                allowed=f"a shape of {nodes} nodes, such as {fits}",
            )
        )
    return shape


def _most_even(nodes: int, dimensions: int) -> tuple[int, ...]:
    """Return the factorisation with the shortest longest side."""
    shapes = _shapes(nodes, dimensions, 1)
    return tuple(sorted(min(shapes, key=lambda s: (max(s), -min(s))), reverse=True))


def _shapes(nodes: int, dimensions: int, least: int) -> Iterator[tuple[int, ...]]:
    """Generate the factorisations into sides that do not fall, the first at least `least`."""
    if dimensions == 1:
        if nodes >= least:
            yield (nodes,)
        return
    for side in range(least, int(nodes ** (1 / dimensions) + 1e-9) + 1):
        if nodes % side == 0:
            for others in _shapes(nodes // side, dimensions - 1, side):
                yield (side, *others)
