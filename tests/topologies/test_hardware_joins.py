"""The language of the hardware files."""

import pytest

from simulator.base.errors import TopologyError
from topologies.hardware_joins import expand_group, expand_join, expand_mesh, expand_pairs


def test_a_join_of_equal_groups_is_one_to_one():
    assert expand_join("nic[0-2] - gpu[1,3,5]") == [
        ("nic0", "gpu1"),
        ("nic1", "gpu3"),
        ("nic2", "gpu5"),
    ]


def test_the_longer_group_is_dealt_in_blocks_whichever_side_it_stands():
    pairs = [("gpu0", "cpu0"), ("gpu1", "cpu0"), ("gpu2", "cpu1"), ("gpu3", "cpu1")]
    assert expand_join("gpu[0-3] - cpu[0-1]") == pairs
    assert expand_join("cpu[0-1] - gpu[0-3]") == [(b, a) for a, b in pairs]


def test_a_mesh_has_every_pair_once():
    assert len(set(map(frozenset, expand_mesh("gpu[0-7]")))) == 8 * 7 // 2


@pytest.mark.parametrize(
    ("expand", "text"),
    [
        (expand_group, "gpu"),
        (expand_group, "gpu[7-0]"),
        (expand_group, "gpu[a]"),
        (expand_join, "gpu0 nvswitch0"),
        (expand_join, "gpu[0-2] - cpu[0-1]"),
        (expand_pairs, "0-1 0-2"),
        (expand_pairs, "gpu: 0-x"),
    ],
)
def test_unreadable_text_is_named(expand, text):
    with pytest.raises(TopologyError) as caught:
        expand(text)
    assert "cannot read" in str(caught.value)
    assert "allowed:" in str(caught.value)
