"""Topologies by name, the user's own included."""

from __future__ import annotations

import numpy as np
import pytest

import topologies
from simulator.base.errors import TopologyError
from simulator.base.fields import option_fields
from tests.fabric.nodes import GB, hgx
from topologies.registry import _REGISTRY


def test_all_networks_are_there():
    assert topologies.kinds() == [
        "dragonfly", "fat_tree", "leaf_spine", "none", "nvl_domain", "rail_only",
        "rail_optimized", "single_switch", "torus", "two_sites",
    ]  # fmt: skip
    assert set(topologies.topologies()) == set(topologies.kinds())
    for entry in topologies.entries():
        assert entry.summary
        assert entry.reference


def test_every_option_says_what_it_is():
    for kind in topologies.kinds():
        fields = list(option_fields(topologies.option_type(kind)))
        assert {"link", "trunk", "hop_latency", "nvl_domain"} <= {field.name for field in fields}
        for field in fields:
            assert field.doc.endswith((".", ")."))
            assert not field.required


def test_an_unknown_topology_shows_the_nearest():
    for ask in (topologies.option_type, topologies.get_topology, topologies.entry):
        with pytest.raises(TopologyError, match="Did you mean 'leaf_spine'"):
            ask("leafspine")
    with pytest.raises(TopologyError, match="Did you mean 'torus'"):
        topologies.build([(hgx(), 1)], "toruss")


def test_options_of_another_topology_are_refused():
    with pytest.raises(TopologyError, match="not options of topology 'torus'"):
        topologies.build([(hgx(), 2)], "torus", topologies.option_type("fat_tree")())


def test_a_topology_from_python():
    """The ring of switches that the decorator's documentation shows."""
    try:

        @topologies.topology("switch_ring", summary="switches in a circle", reference="none")
        def wire(ports, options):
            builder = topologies.start(ports, options)
            ring = builder.switches("leaf", ports.n_nodes)
            builder.attach(ring[ports.node], options.link)
            builder.connect(ring, np.roll(ring, -1), topologies.trunk_rate(ports, options))
            return builder.finish()

        fabric = topologies.build([(hgx(), 5)], "switch_ring")
        assert fabric.counts()["leaf"] == 5
        assert len(fabric.find_links("leaf*->leaf*")) == 10
        with pytest.raises(ValueError, match="registered twice"):
            topologies.topology("switch_ring", summary="again", reference="none")(wire)
        # Two switches: both cables of the circle join the same pair and become one.
        pair = topologies.build([(hgx(), 2)], "switch_ring")
        assert pair.capacity_Bps[pair.find_links("leaf0->leaf1")].tolist() == [2 * 50 * GB]
    finally:
        _REGISTRY._entries.pop("switch_ring", None)
