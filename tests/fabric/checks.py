"""What must hold for every route."""

from __future__ import annotations

import itertools

import numpy as np

from simulator.fabric.fabric import Fabric
from simulator.fabric.model import Routes


def check_routes(fabric: Fabric, routes: Routes, src: np.ndarray, dst: np.ndarray) -> None:
    """A unit leaves the source, arrives at the destination, and is kept everywhere between."""
    assert routes.n_pairs == len(src) > 0
    owner = np.repeat(np.arange(len(src)), np.diff(routes.indptr))
    self_link = fabric.link_src[routes.link] == fabric.link_dst[routes.link]
    assert (routes.share[~self_link] <= 1 + 1e-12).all()
    assert (routes.share > 0).all()
    assert len(np.unique(owner * fabric.n_links + routes.link)) == len(owner), "a link twice"
    n = fabric.n_vertices
    flow = np.zeros(len(src) * n)
    np.add.at(flow, owner * n + fabric.link_dst[routes.link], routes.share)
    np.add.at(flow, owner * n + fabric.link_src[routes.link], -routes.share)
    wanted = np.zeros_like(flow)
    pairs = np.arange(len(src))
    np.add.at(wanted, pairs * n + dst, 1.0)
    np.add.at(wanted, pairs * n + src, -1.0)
    np.testing.assert_allclose(flow, wanted, atol=1e-12)


def names(fabric: Fabric, routes: Routes, pair: int = 0) -> list[str]:
    """Return the links of a pair by name."""
    return [fabric.link_name(link) for link in routes.pair(pair)[0]]


def vertices(fabric: Fabric, routes: Routes, pair: int = 0) -> list[str]:
    """Return the vertices of an unsplit pair in order, after checking that its links join."""
    links = [
        link for link in routes.pair(pair)[0] if fabric.link_src[link] != fabric.link_dst[link]
    ]
    for here, following in itertools.pairwise(links):
        assert fabric.link_dst[here] == fabric.link_src[following]
    path = [int(fabric.link_src[links[0]]), *(int(fabric.link_dst[link]) for link in links)]
    return [fabric.vertex_name(vertex) for vertex in path]


def all_pairs(fabric: Fabric) -> tuple[np.ndarray, np.ndarray]:
    """Return all ordered pairs of GPUs."""
    gpus = fabric.gpu_vertex
    return np.repeat(gpus, len(gpus)), np.tile(gpus, len(gpus))
