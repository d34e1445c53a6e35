"""Versions of NCCL are read in every spelling and compared as numbers."""

import itertools

import pytest

from simulator.base.errors import ScenarioError
from simulator.costs.nccl.tables import read_table, since
from simulator.costs.nccl.version import NEWEST, NcclVersion, nearest_supported, row_since


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.21.5", (2, 21, 5)),
        ("v2.21.5-1", (2, 21, 5)),
        ("2.21.5+cuda12.4", (2, 21, 5)),
        ("2.18", (2, 18, 0)),
        (" 2.19.3 ", (2, 19, 3)),
        (22105, (2, 21, 5)),
        ("22703", (2, 27, 3)),
        (2804, (2, 8, 4)),
    ],
)
def test_a_version_is_read(text: str | int, expected: tuple[int, int, int]) -> None:
    version = NcclVersion.parse(text)
    assert (version.major, version.minor, version.patch) == expected


@pytest.mark.parametrize("text", ["", "newest", "2", "2.x", 7, "1..2"])
def test_anything_else_is_refused(text: str | int) -> None:
    with pytest.raises(ScenarioError, match=r"is not an NCCL version"):
        NcclVersion.parse(text)


def test_the_code_is_that_of_the_library() -> None:
    # nccl.h: NCCL_VERSION(X,Y,Z) is X*1000+Y*100+Z up to 2.8 and X*10000+Y*100+Z since.
    assert NcclVersion(2, 21, 5).code == 22105
    assert NcclVersion(2, 8, 4).code == 2804
    assert NcclVersion.parse(NcclVersion(2, 9, 9).code) == NcclVersion(2, 9, 9)


def test_versions_compare_by_number_not_by_text() -> None:
    assert NcclVersion(2, 9) < NcclVersion(2, 10) < NcclVersion(2, 10, 3)
    assert NcclVersion(2, 28, 4).since(2, 28)
    assert not NcclVersion(2, 28, 3).since(2, 28, 4)


def test_versions_outside_the_tables_are_clamped_with_a_note_or_refused() -> None:
    assert nearest_supported(NcclVersion(2, 24, 3)) == (NcclVersion(2, 24, 3), None)
    old, note = nearest_supported(NcclVersion(2, 7, 8))
    assert old == NcclVersion(2, 12)
    assert "2.7.8" in str(note)
    new, note = nearest_supported(NcclVersion(2, 31, 0))
    assert new == NEWEST
    assert "2.30" in str(note)
    with pytest.raises(ScenarioError, match=r"2\.3\.0 is not modelled"):
        nearest_supported(NcclVersion(2, 3))
    with pytest.raises(ScenarioError, match="not modelled"):
        nearest_supported(NcclVersion(3, 0))


def _tables() -> list[tuple[str, list[dict[str, object]]]]:
    found: list[tuple[str, list[dict[str, object]]]] = []

    def walk(name: str, node: object) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                walk(f"{name}.{key}", value)
        elif isinstance(node, list) and node and isinstance(node[0], dict):
            found.append((name, node))

    for file in ("tuning", "topology"):
        walk(file, read_table(file))
    return found


def test_every_row_of_every_table_is_used_by_its_version_and_differs_from_the_one_before() -> None:
    tables = _tables()
    assert len(tables) >= 15
    for name, rows in tables:
        versions = [NcclVersion.parse(str(row["since"])) for row in rows]
        assert versions == sorted(set(versions)), name
        assert versions[0] <= NcclVersion(2, 28), name
        for version, row in zip(versions, rows, strict=True):
            assert row_since(rows, version) is row, name
        for before, after in itertools.pairwise(rows):
            trimmed = [{k: v for k, v in row.items() if k != "since"} for row in (before, after)]
            assert trimmed[0] != trimmed[1], f"{name} {after['since']} repeats"
        assert row_since(rows, NEWEST) is rows[-1], name


@pytest.mark.parametrize(
    ("key", "column", "values"),
    [
        # Read off src/graph/tuning.cc at the tags named; volta and ampere never changed.
        ("ll_max_GBps", "hopper", {"2.16.5": [87.7, 22.5, 19.0], "2.21.5": [141.0, 45.0, 35.0]}),
        ("ll_max_GBps", "blackwell", {"2.27.3": [282.0, 90.0, 70.0]}),
        ("ll_max_GBps", "volta", {"2.12.12": [39.0, 39.0, 20.4], "2.30.7": [39.0, 39.0, 20.4]}),
        ("ll_max_GBps", "ampere", {"2.12.12": [87.7, 22.5, 19.0], "2.30.7": [87.7, 22.5, 19.0]}),
        ("ring_ll128_channel_GBps", "hopper", {"2.16.5": [20] * 3, "2.21.5": [36.7] * 3}),
        (
            "ring_ll128_channel_GBps",
            "blackwell",
            {"2.25.1": [73.4] * 3, "2.28.3": [73.4] * 3, "2.28.9": [73.4, 34.6, 73.4],
             "2.29.7": [40] * 3},
        ),
        ("tree_ll128_channel_GBps", "hopper", {"2.21.5": [36.7, 36.7, 29.0]}),
        (
            "tree_ll128_channel_GBps",
            "blackwell",
            {"2.25.1": [73.4, 73.4, 58], "2.28.3": [55.6, 31.67, 20]},
        ),
        (
            "tree_channel_GBps",
            "hopper",
            {"2.16.5": [24.0, 23.6, 17.8], "2.17.1": [38.7, 41.4, 33.0],
             "2.21.5": [38.7, 41.4, 36.0]},
        ),
        ("tree_channel_GBps", "blackwell", {"2.25.1": [77.4, 82.8, 72.0],
                                            "2.28.3": [70.0, 42.8, 24.0]}),
        ("tree_channel_GBps", "volta", {"2.12.12": [26.5, 18.5, 10.0]}),
        ("tree_channel_GBps", "volta", {"2.30.7": [26.5, 18.5, 10.0]}),
        ("tree_channel_GBps", "ampere", {"2.30.7": [24.0, 23.6, 17.8]}),
        ("nvls_tree_channel_GBps", "hopper", {"2.28.3": [0, 57.7, 45.5]}),
        ("nvls_tree_channel_GBps", "blackwell", {"2.28.9": [0, 96.0, 43.8],
                                                 "2.29.7": [0, 96.0, 80.0]}),
        ("base_latency_us", "tree", {"2.12.12": [4.4, 4.4, 0], "2.21.5": [6.8, 14.0, 0],
                                     "2.23.4": [6.8, 14.0, 8.4]}),
        ("base_latency_us", "ring", {"2.12.12": [3.6, 10.0, 8.4], "2.30.7": [6.6, 14.0, 8.4]}),
        ("base_latency_us", "nvls", {"2.17.1": [0, 0, 40], "2.18.5": [0, 0, 23],
                                     "2.19.3": [0, 0, 0]}),
        ("hop_latency_us.nvlink", "tree", {"2.12.12": [0.52, 1.25, 28], "2.18.5": [0.6, 1.25, 4],
                                           "2.21.5": [0.6, 1.25, 28], "2.23.4": [0.6, 1.25, 4.0]}),
        ("hop_latency_us.nvlink", "ring", {"2.12.12": [0.47, 1.9, 3.4], "2.18.5": [0.6, 1.9, 3.4]}),
        ("hop_latency_us.nvlink", "nvls", {"2.19.3": 23, "2.21.5": 25, "2.30.7": 25}),
        ("hop_latency_us.pcie", "tree", {"2.12.12": [1.0, 1.9, 28], "2.18.5": [1.0, 1.9, 6],
                                         "2.21.5": [1.0, 1.9, 28], "2.23.4": [1.0, 1.9, 4.0]}),
        ("hop_latency_us.pcie", "ring", {"2.12.12": [1.0, 2.5, 5.7], "2.30.7": [1.0, 2.5, 5.7]}),
        ("hop_latency_us.network", "tree", {"2.12.12": [5.0, 8.5, 28], "2.18.5": [5.0, 8.5, 14],
                                            "2.21.5": [5.0, 8.5, 28], "2.23.4": [5.0, 8.5, 14]}),
        ("hop_latency_us.network", "ring", {"2.12.12": [2.7, 4.0, 28], "2.14.3": [2.7, 4.0, 9.6],
                                            "2.18.5": [2.7, 4.0, 14.0]}),
        ("hop_latency_us.network", "collnet_chain", {"2.14.3": 10.7, "2.18.5": 14, "2.21.5": 30}),
        ("hop_latency_us.network", "nvls_tree", {"2.18.5": 19, "2.21.5": 14, "2.28.3": 14,
                                                 "2.28.9": 20.9}),
        ("nvls_channels", "blackwell_nodes", {"2.21.5": 16, "2.27.3": 32}),
        ("max_channels", "count", {"2.24.3": 32, "2.25.1": 64}),
    ],
)  # fmt: skip
def test_values_are_those_of_the_source(key: str, column: str, values: dict[str, object]) -> None:
    for version, expected in values.items():
        assert since("tuning", key, NcclVersion.parse(version))[column] == expected, version
