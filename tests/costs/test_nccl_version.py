"""Versions of NCCL are read in every spelling and compared as numbers."""

import itertools

import pytest

from simulator.base.errors import ScenarioError
from simulator.costs.nccl.tables import read_table
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
