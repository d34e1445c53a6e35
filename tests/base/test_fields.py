"""One declaration reads, writes and limits a configuration field."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.base.errors import UnitError
from simulator.base.fields import (
    KIND_WORDS,
    Kind,
    format_ranks,
    option,
    option_fields,
    parse_count,
    parse_flag,
    parse_ranks,
)


@dataclass(frozen=True, kw_only=True)
class Options:
    rate_Bps: float = option("rate", doc="r")
    delay_s: float = option("time", 1e-6, doc="d")
    size_bytes: int = option("size", 8, doc="s", minimum=0)
    nodes: int = option("count", 1, doc="n", minimum=1, maximum=4)
    share: float = option("fraction", 0.5, doc="f")
    on: bool = option("flag", False, doc="o")
    policy: str = option("name", "ecmp", doc="p", choices=("ecmp", "adaptive"))
    words: str = option("text", "", doc="w")
    ranks: tuple[int, ...] | None = option("ranks", None, doc="k", key="members")
    plain: int = 3


FIELDS = {item.name: item for item in option_fields(Options)}


def test_only_declared_fields_are_options():
    assert "plain" not in FIELDS
    assert [item.required for item in FIELDS.values()] == [True] + [False] * 8


def test_keys_are_names_without_their_units():
    assert [item.key for item in FIELDS.values()] == [
        *("rate", "delay", "size", "nodes", "share", "on", "policy", "words", "members")
    ]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rate_Bps", "8 Gbit/s", 1e9),
        ("delay_s", "2 us", 2e-6),
        ("size_bytes", "0 B", 0),
        ("nodes", "4", 4),
        ("nodes", "1e0", 1),
        ("share", "5 %", 0.05),
        ("on", "no", False),
        ("on", "On", True),
        ("policy", "adaptive", "adaptive"),
        ("words", "no", "no"),
        ("ranks", "0-2,9", (0, 1, 2, 9)),
    ],
)
def test_text_is_read_by_kind_and_shown_so_that_it_reads_back(name, text, value):
    field = FIELDS[name]
    assert field.parse(text) == value
    assert field.parse(field.show(value)) == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("nodes", "0", "0 is too small"),
        ("nodes", "5", "5 is too large"),
        ("nodes", "-1", "-1 is negative"),
        ("nodes", "1.5", "'1.5' is not a whole number"),
        ("nodes", "1e-1", "'1e-1' is not a whole number"),
        ("nodes", "inf", "'inf' is not a whole number"),
        ("on", "perhaps", "'perhaps' is not yes or no"),
        ("policy", "adaptve", "unknown policy 'adaptve'"),
        ("ranks", "a", "'a' is no rank"),
        ("ranks", "", "'' is no rank"),
        ("ranks", "3-1", "'3-1' is empty"),
        ("ranks", "0-6:0", "'0-6:0' is empty"),
        ("ranks", "0-3,2", "rank 2 is named twice"),
        ("ranks", "0-99999999", "'0-99999999' has too many ranks"),
    ],
)
def test_refusals(name, text, words):
    with pytest.raises(UnitError) as found:
        FIELDS[name].parse(text)
    assert found.value.problems[0].message == words


def test_nothing_is_shown_as_null():
    assert FIELDS["ranks"].show(None) == "null"


@given(st.lists(st.integers(0, 300), unique=True, min_size=1))
def test_ranks_keep_their_order(ranks):
    assert parse_ranks(format_ranks(tuple(ranks))) == tuple(ranks)


def test_long_groups_are_short_to_write():
    assert format_ranks(tuple(range(16384))) == "0-16383"
    assert format_ranks(tuple(range(0, 1024, 8))) == "0-1016:8"


@given(st.integers(0, 10**30))
def test_counts_of_any_size_are_exact(value):
    assert parse_count(str(value)) == value


def test_flags_of_any_case():
    assert [parse_flag(text) for text in ("TRUE", "yes", "Off", "no")] == [True, True, False, False]


def test_every_kind_has_words():
    assert set(KIND_WORDS) == set(Kind.__args__)
