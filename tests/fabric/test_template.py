"""Node templates are checked, all problems together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.base.errors import TopologyError
from simulator.fabric.model import TemplateLink, TemplateVertex
from simulator.fabric.template import compile_template
from tests.fabric.nodes import GB, dgx, node, pcie_box


def test_directed_links_stand_in_pairs():
    compiled = compile_template(dgx())
    assert compiled.n_links == 2 * len(dgx().links)
    assert (compiled.link_src[0::2] == compiled.link_dst[1::2]).all()
    assert (compiled.link_src[1::2] == compiled.link_dst[0::2]).all()


def test_memory_bandwidth_gives_each_cpu_a_self_link():
    compiled = compile_template(dgx(cpu_memory_Bps=200 * GB))
    assert len(compiled.memory_link) == 2
    for cpu, link in compiled.memory_link.items():
        assert compiled.link_src[link] == compiled.link_dst[link] == cpu
        assert compiled.capacity_Bps[link] == 200 * GB
    assert not compile_template(dgx()).memory_link


def test_the_same_template_is_compiled_once():
    template = dgx()
    assert compile_template(template) is compile_template(template)


def _with_link(**changes):
    good = dgx().links[0]
    return replace(dgx(), links=(*dgx().links[1:], replace(good, **changes)))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (node("n", [("gpu0", "gpu"), ("gpu0", "gpu")], []), "two vertices are called 'gpu0'"),
        (node("n", [("gpu0", "gpo")], []), "unknown vertex kind 'gpo'"),
        (node("n", [("leaf0", "leaf"), ("gpu0", "gpu")], []), "unknown vertex kind 'leaf'"),
        (node("n", [("cpu0", "cpu")], []), "has no gpu"),
        (_with_link(a="gpu9"), "unknown vertex 'gpu9'"),
        (_with_link(b="gpu0"), "joins a vertex to itself"),
        (replace(dgx(), links=(*dgx().links, dgx().links[0])), "given twice"),
        (_with_link(kind="nvlnk"), "Did you mean 'nvlink'"),
        (_with_link(kind="memory"), "unknown link kind 'memory'"),
        (_with_link(bandwidth_Bps=0.0), "bandwidth is 0.0"),
        (_with_link(bandwidth_Bps=float("inf")), "bandwidth is inf"),
        (_with_link(latency_s=float("nan")), "latency is nan"),
        (_with_link(latency_s=-1.0), "latency is -1.0"),
        (dgx(nic_kind=None), "link kind is 'none'"),
        (dgx(nic_rate_Bps=0.0), "NICs' rate is 0.0"),
    ],
)
def test_a_bad_template_is_refused(template, said):
    with pytest.raises(TopologyError, match=said):
        compile_template(template)


def test_reversed_duplicate_link_is_refused():
    first = pcie_box().links[0]
    again = TemplateLink(
        a=first.b, b=first.a, kind="pcie", bandwidth_Bps=GB, latency_s=0.0, source="made up"
    )
    with pytest.raises(TopologyError, match="given twice"):
        compile_template(replace(pcie_box(), links=(*pcie_box().links, again)))


def test_all_problems_come_together():
    template = replace(
        _with_link(bandwidth_Bps=-1.0),
        vertices=(*dgx().vertices, TemplateVertex(name="x", kind="y")),
    )
    with pytest.raises(TopologyError) as caught:
        compile_template(template)
    assert len(caught.value.problems) == 2
