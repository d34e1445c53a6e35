"""Names of vertices and links, and how to find them again."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, TopologyError, nearest
from simulator.fabric.tiling import Tiling

__all__ = ["Names"]

IntArray = NDArray[np.int64]


class Names:
    """Vertex and link names of a fabric.

    Parameters
    ----------
    tiling
        The nodes.
    switches
        Names of the network switches, which follow the tiling's vertices.
    link_src, link_dst
        Ends of all links.
    nodes
        Names of the nodes; None: ``node0 node1 …``.

    Raises
    ------
    TopologyError
        A name used twice.
    """

    def __init__(
        self,
        tiling: Tiling,
        switches: Sequence[str],
        link_src: IntArray,
        link_dst: IntArray,
        nodes: Sequence[str] | None,
    ) -> None:
        self._tiling = tiling
        self._switches = tuple(switches)
        self._first_switch = len(tiling.vertex_kind)
        self._link_src, self._link_dst = link_src, link_dst
        if nodes is not None and len(nodes) != len(tiling.template_of_node):
            raise TopologyError(
                Problem(
                    key="nodes",
                    message=f"{len(nodes)} names for {len(tiling.template_of_node)} nodes",
                )
            )
        self._nodes = None if nodes is None else tuple(nodes)
        self._known: dict[int, str] = {}
        for what, names in (("nodes", self._nodes or ()), ("switches", self._switches)):
            if len(set(names)) < len(names):
                seen: set[str] = set()
                twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
                raise TopologyError(
                    Problem(
                        key=what,
                        message=f"two {what} are called {twice!r}",
                        allowed="a name of its own for each",
                    )
                )
        both = set(self._nodes or ()) & set(self._switches)
        if both:
            raise TopologyError(
                Problem(key="switches", message=f"{min(both)!r} is a node and a switch")
            )

    def node(self, node: int) -> str:
        """Return the name of a node."""
        return f"node{node}" if self._nodes is None else self._nodes[node]

    def vertex(self, vertex: int) -> str:
        """Return the name of a vertex."""
        if vertex >= self._first_switch:
            return self._switches[vertex - self._first_switch]
        if vertex not in self._known:
            self._known[vertex] = self._inside(vertex)
        return self._known[vertex]

    def _inside(self, vertex: int) -> str:
        """Return the name of a vertex of a node or an NVLink domain."""
        tiling = self._tiling
        node = int(tiling.vertex_node[vertex])
        if node < 0:
            return tiling.domain_names[vertex - self._first_switch]
        compiled = tiling.compiled[int(tiling.template_of_node[node])]
        return f"{self.node(node)}.{compiled.names[int(tiling.local_vertex[vertex])]}"

    def link(self, link: int) -> str:
        """Return the name of a directed link."""
        src, dst = int(self._link_src[link]), int(self._link_dst[link])
        if src == dst:
            return f"{self.vertex(src)}.memory"
        return f"{self.vertex(src)}->{self.vertex(dst)}"

    @cached_property
    def vertex_index(self) -> dict[str, int]:
        """Vertex by name."""
        count = self._first_switch + len(self._switches)
        return {self.vertex(vertex): vertex for vertex in range(count)}

    @cached_property
    def link_index(self) -> dict[str, int]:
        """Directed link by name."""
        names = list(self.vertex_index)
        pairs = zip(self._link_src.tolist(), self._link_dst.tolist(), strict=True)
        return {
            f"{names[src]}->{names[dst]}" if src != dst else f"{names[src]}.memory": link
            for link, (src, dst) in enumerate(pairs)
        }

    def find_vertex(self, name: str) -> int:
        """Return the vertex of that name; an unknown one raises TopologyError."""
        found = self.vertex_index.get(name)
        if found is None:
            raise TopologyError(
                Problem(
                    message=f"no vertex is called {name!r}",
                    allowed=f"names such as {self._examples(self.vertex_index)}",
                    suggestion=_nearest(name, self.vertex_index),
                )
            )
        return found

    def find_links(self, pattern: str) -> list[int]:
        """Return the directed links of that name or glob; none at all raises TopologyError."""
        wanted = [pattern]
        if "<->" in pattern:
            a, b = pattern.split("<->", 1)
            wanted = [f"{a}->{b}", f"{b}->{a}"]
        found: set[int] = set()
        for one in wanted:
            if one in self.link_index:
                found.add(self.link_index[one])
            elif any(sign in one for sign in "*?["):
                found.update(self.link_index[name] for name in fnmatch.filter(self.link_index, one))
        if not found:
            raise TopologyError(
                Problem(
                    message=f"no link matches {pattern!r}",
                    allowed=f"names such as {self._examples(self.link_index)}, or a glob",
                    suggestion=_nearest(wanted[0], self.link_index),
                )
            )
        return sorted(found)

    @staticmethod
    def _examples(index: dict[str, int]) -> str:
        names = list(index)
        return ", ".join(dict.fromkeys((names[0], names[-1])))

    def short_list(self, vertices: IntArray, most: int = 4) -> str:
        """Return the names of some vertices, whole nodes named once, the rest as a number."""
        tiling = self._tiling
        inner = vertices[vertices < self._first_switch]
        owner = tiling.vertex_node[inner]
        n_nodes = len(tiling.template_of_node)
        present = np.bincount(owner[owner >= 0], minlength=n_nodes)
        size = np.bincount(tiling.vertex_node[tiling.vertex_node >= 0], minlength=n_nodes)
        whole = present == size
        names: dict[str, None] = {}
        for vertex in vertices.tolist():
            node = int(tiling.vertex_node[vertex]) if vertex < self._first_switch else -1
            names[self.node(node) if node >= 0 and whole[node] else self.vertex(vertex)] = None
        shown = list(names)
        more = len(shown) - most
        return ", ".join(shown[:most]) + (f" and {more} more" if more > 0 else "")


def _nearest(name: str, known: Iterable[str]) -> str | None:
    # Comparing with every name of a large cluster would take seconds: those of about the same
    # length that begin alike come first, and 2,000 are enough.
    close = [candidate for candidate in known if abs(len(candidate) - len(name)) <= 2]
    alike = [candidate for candidate in close if candidate[:5] == name[:5]]
    return nearest(name, (alike or close)[:2000])
