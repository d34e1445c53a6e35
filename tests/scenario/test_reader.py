"""The reader follows the declarations of any dataclass."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from simulator.base.errors import CollsimError
from simulator.base.fields import option
from simulator.scenario import loads
from simulator.scenario.plain import to_plain
from simulator.scenario.reader import Reader, label_of, shaped
from simulator.scenario.shapes import NestedList
from simulator.scenario.tree import parse_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    delay_s: float = option("time", doc="d")
    names: tuple[str, ...] = option("name", doc="n", choices=("a", "b"), many=True)

    def __post_init__(self) -> None:
        if self.delay_s > 1:
            raise CollsimError("is too slow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    count: int = option("count", 3, doc="c")
    label: str | None = option("text", None, doc="l", key="called")
    parts: tuple[Part, ...] = shaped(NestedList(Part), doc="p", aliases=("part",))


def read(text):
    reader = Reader()
    return reader, reader.section(Whole, parse_text(text, "f"), "")


def messages(text):
    return [f"{p.line}: {p.key}: {p.message}" for p in read(text)[0].problems]


def test_values_defaults_and_origins():
    reader, found = read("called: x\npart: {delay: 1 us, names: a}\n")
    assert found == Whole(count=3, label="x", parts=(Part(delay_s=1e-6, names=("a",)),))
    assert reader.problems == []
    assert reader.origins["count"] == "default"
    assert reader.origins["parts"] == "f:2"
    assert reader.origins["part[0].delay"] == "f:2"


def test_plain_data_have_the_keys_of_files():
    _, found = read("part: {delay: 1 us, names: [a, b]}\n")
    assert to_plain(found) == {
        "count": 3,
        "called": None,
        "parts": [{"delay": "1 us", "names": ["a", "b"]}],
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("parts:\n- {delay: 1 us}\n", ["2: parts[0].names: is missing"]),
        ("parts:\n- {delay: 1 us, names: [a, c]}\n", ["2: parts[0].names: unknown names 'c'"]),
        ("parts:\n- {delay: 2 s, names: a}\n", ["2: parts[0]: is too slow"]),
        # a section with a slip is not judged as a whole
        (
            "parts:\n- {delay: 2 s, names: c}\n",
            ["2: parts[0].names: unknown names 'c'"],
        ),
        (
            "count: x\nparts:\n- 3\n- {delay: 1}\n",
            [
                "1: count: 'x' is not a whole number",
                "3: parts[0]: is the single value '3'",
                "4: parts[1].delay: '1' has no unit",
                "4: parts[1].names: is missing",
            ],
        ),
    ],
)
def test_all_problems_are_found_in_one_reading(text, expected):
    assert messages(text) == expected


def test_an_open_sweep_is_reported_and_decided_by_choices():
    text = "count: [4, 5, 6]\n"
    reader, found = read(text)
    assert reader.open == ("count", 3)
    assert found.count == 4
    reader = Reader(choices={"count": 2})
    assert reader.section(Whole, parse_text(text, "f"), "").count == 6
    assert dict(reader.labels()) == {"count": "6"}
    assert reader.open is None


def test_long_labels_stay_whole_and_apart():
    """Tables cut them; two that differ in the end only must not become one."""
    texts = ["{" + ", ".join(f"key{i}: {i}" for i in range(20)) + f", last: {n}}}" for n in (1, 2)]
    one, other = (label_of(parse_text(text, "f")) for text in texts)
    assert one != other


def test_bare_sizes_are_bytes_on_the_command_line_wherever_a_size_is_meant():
    text = (
        "schema_version: 1\nnode: dgx-h100\n"
        "generator: {ddp: {size: 1 MiB, forward: 1 ms, backward: 2 ms}}\n"
    )
    (found,) = loads(text, overrides=["generator.ddp.bucket_cap=1024"]).variants
    assert found.generator.ddp.bucket_cap_bytes == 1024


def test_text_that_is_no_mapping():
    with pytest.raises(CollsimError) as found:
        loads("[1]", name="f")
    assert str(found.value) == "f: is a list\n  allowed: keys such as node: dgx-h100."
    assert label_of(parse_text("[1, {a: 2}]", "f")) == "1 a=2"
