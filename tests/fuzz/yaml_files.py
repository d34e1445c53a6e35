"""Scenario files with one or two things wrong: values, keys, lines, letters, structure."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from hypothesis import strategies as st

from tests.fuzz.runner import Case
from tests.fuzz.values import garbage

__all__ = ["scenario_files"]

SHIPPED = Path(__file__).parents[2] / "scenarios"
_SMALL = (
    "schema_version: 1\nnode: 4xH100\ncollective: {op: all_reduce, sizes: [1 KiB, 1 MiB]}\n",
    "schema_version: 1\ndescription: a question\nnode: {preset: dgx-a100, nic_rate: 200 Gbit/s}\n"
    "nodes: 2\nfabric: {kind: leaf_spine, oversubscription: 2}\nrouting: {policy: ecmp}\n"
    "collective:\n  op: all_gather\n  size: 1 MiB\n  algorithm: ring\n  channels: 2\n",
    "schema_version: 1\nnode: 4xA100\nprograms:\n- ranks: 0-3\n  do:\n"
    "  - {compute: 1 ms, stream: a}\n  - {collective: {op: all_reduce, size: 1 MiB}, after: a}\n"
    "  - repeat: 3\n    do: [{compute: 10 us}]\n",
    "schema_version: 1\nnode: 4xH100\ncosts: {profile: ideal}\njobs:\n"
    "- {name: a, ranks: 0-1, collective: {op: all_reduce, size: 1 MiB}, start: 5 us}\n"
    "- {name: b, ranks: 2-3, collective: {op: broadcast, size: 1 MiB}, repeat: 2}\n",
    "schema_version: 1\nnode: 4xA100\ntraining: {model: gpt2-small, framework: torch,"
    " data_parallel: ddp, micro_batch: 1, bucket: 25 MiB}\n",
    "schema_version: 1\nnode: 4xH100\nnodes: 2\nseed: [1, 2]\n"
    "collective: {op: all_reduce, size: 1 MiB, algorithm: ring}\nengine: {level: steps}\n"
    "perturb:\n  late: [{ranks: 1, by: 10 us}]\n  skew: 1 us\n  jitter: {sigma: 5 %}\n"
    "  links: [{link: 'node0.nic0*', factor: 0.5}]\n",
    "schema_version: 1\nnode: 4xA100\ngenerator: {kind: ddp, gradients: 100 MB, layers: 4,"
    " backward: 4 ms, bucket: 25 MB}\n",
    "schema_version: 1\ntopology:\n  vertices: [{name: a, kind: gpu}, {name: b, kind: gpu}]\n"
    "  links: [{a: a, b: b, kind: nvlink, bandwidth: 50 GB/s, latency: 1 us}]\n"
    "collective: {op: all_reduce, size: 1 MiB, algorithm: ring}\ncosts: ideal\n",
)
_TOKEN = re.compile(r"(?<=[:\[,{ ])\s*([^\s:,\[\]{}#'\"][^:,\[\]{}#\n]*)(?=[,\]}\n])")
_KEY = re.compile(r"([A-Za-z_]+)(?=:)")
_LETTERS = (
    "\0", "\x1b", "\ufeff", "\t", "{", "}", "[", "]", ":", ": ", ",", "&a ", "*a", "%", "@", "`",
    "|", ">", "!", "\u2028", "\x85", "\x7f", "- ", "? ", "---\n", "...\n", "#", "<<: ", "\ud800",
)  # fmt: skip


def texts(*, shipped: bool) -> st.SearchStrategy[str]:
    """Files that are right: small ones, and those of the project."""
    small = st.sampled_from(_SMALL)
    if not shipped:
        return small
    return small | st.sampled_from(sorted(SHIPPED.glob("*.yaml"))).map(Path.read_text)


def _replaced(draw: st.DrawFn, text: str, pattern: re.Pattern[str], new: str) -> str:
    found = list(pattern.finditer(text))
    if not found:
        return text
    hit = draw(st.sampled_from(found))
    return text[: hit.start(1)] + new + text[hit.end(1) :]


def _of_tree(draw: st.DrawFn, text: str) -> str:
    """Change a value anywhere in the tree, lists and sections included."""
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    here = tree
    while isinstance(here, dict | list) and here:
        key = draw(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here))))
        if not isinstance(here[key], dict | list) or draw(st.integers(0, 2)) == 0:
            other = st.sampled_from(
                [None, [], {}, "", 0, -1, [here[key]] * 2, {"a": here[key]}, "auto"]
            )
            here[key] = draw(other)
            break
        here = here[key]
    return str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def _changed(draw: st.DrawFn, text: str) -> str:
    lines = text.split("\n")
    here = draw(st.integers(0, max(0, len(lines) - 2)))
    place = draw(st.integers(0, len(text)))
    kind = draw(
        st.sampled_from(["value", "value", "value", "key", "tree", "tree", "line", "letter", "cut"])
    )
    if kind == "value":
        return _replaced(draw, text, _TOKEN, draw(garbage))
    if kind == "key":
        return _replaced(
            draw, text, _KEY, draw(garbage | st.sampled_from(["Op", "k" * 3000, "a.b", "<<"]))
        )
    if kind == "tree":
        return _of_tree(draw, text)
    if kind == "letter":
        return text[:place] + draw(st.sampled_from(_LETTERS)) + text[place:]
    if kind == "cut":
        return text[:place]
    change = draw(st.sampled_from(["drop", "twice", "in", "out"]))
    line = lines[here]
    lines[here : here + 1] = {
        "drop": [],
        "twice": [line, line],
        "in": [" " + line],
        "out": [line[1:]],
    }[change]
    return "\n".join(lines)


@st.composite
def scenario_files(draw: st.DrawFn, *, shipped: bool = False) -> Case:
    """``collsim run`` of a file with one to three changes."""
    text = draw(texts(shipped=shipped))
    for _ in range(draw(st.integers(1, 3))):
        text = _changed(draw, text)
    words = ("run", "a.yaml", "-q", "--workers", "1", "--json", "result.json")
    files = {"a.yaml": text.encode("utf-8", "surrogatepass")}
    if shipped:
        files |= {path.name: path.read_bytes() for path in SHIPPED.glob("zero*.yaml")}
    return Case(words, files)
