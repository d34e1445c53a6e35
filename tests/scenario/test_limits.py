"""Every number has a largest value, checked where it comes in, and named in the message."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from simulator.base.errors import CollsimError, UnitError
from simulator.base.fields import OptionField, parse_count, parse_ranks
from simulator.base.limits import (
    MOST_BLOCKS,
    MOST_DIMENSION,
    MOST_OPERATIONS,
    MOST_PARAMETERS,
    MOST_SIZE_BYTES,
    TABLE,
)
from simulator.base.units import exact_size, parse_fraction, parse_size
from simulator.models import from_dims
from simulator.scenario import loads, plugins
from simulator.scenario.amounts import n_generated, n_operations
from simulator.scenario.reader import declared
from simulator.scenario.reference import markdown
from simulator.scenario.resolved import Resolved
from simulator.scenario.steps import CallOp, ComputeOp, RepeatOp, WaitOp

MACHINE = "schema_version: 1\nnode: dgx-h100\n"
CALL = "collective: {op: all_reduce, size: 1 MiB}\n"
NUMBERS = ("rate", "time", "size", "count", "fraction")


def options_of(owner: type[Any], path: str) -> Iterator[tuple[str, OptionField]]:
    for item in declared(owner):
        if isinstance(item, OptionField):
            yield f"{path}.{item.key}", item
        elif item.shape.owner() is not None:
            yield from options_of(item.shape.owner(), f"{path}.{item.key}")


def all_options() -> dict[str, OptionField]:
    found = dict(options_of(Resolved, ""))
    for owner in (CallOp, ComputeOp, RepeatOp, WaitOp):
        found |= dict(options_of(owner, owner.__name__))
    for kind in plugins.fabric_kinds():
        found |= dict(options_of(plugins.fabric_options(kind), f"fabric.{kind}"))
    return {key: item for key, item in found.items() if item.kind in NUMBERS}


OPTIONS = all_options()


def test_there_are_numbers_of_every_kind():
    assert len(OPTIONS) > 120
    assert {item.kind for item in OPTIONS.values()} == set(NUMBERS)


@pytest.mark.parametrize("key", sorted(OPTIONS))
def test_every_number_has_a_largest_value(key):
    item = OPTIONS[key]
    most = item.limits[1]
    assert most is not None
    assert 0 < most < 2**63
    assert item.parse(item.show(most)) == most
    beyond = item.show(most * 2) if item.kind != "count" else str(int(most) + 1)
    with pytest.raises(UnitError) as found:
        item.parse(beyond)
    assert f"is too large\n  allowed: {'≤ ' if item.limits[0] is None else ''}" in str(found.value)
    assert item.show(most) in str(found.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"{CALL}perturb: {{links: [{{link: '*', factor: 1e-300}}]}}", "perturb.links[0].factor"),
        (f"{CALL}costs: {{gpus_per_process: 1e9}}", "costs.gpus_per_process"),
        (f"{CALL}nodes: 1000000", "nodes"),
        (f"{CALL}nodes: 100000", "nodes"),
        ("training: {model: gpt2, seq: 1e99}", "training.seq"),
        ("training: {model: gpt2, micro_batch: 2147483648}", "training.micro_batch"),
        ("collective: {op: all_reduce, size: 9e18 B}", "collective.size"),
        ("collective: {op: all_reduce, sizes: [1 MiB, 9e18 B]}", "collective.sizes"),
        ("collective: {op: all_reduce, sizes: {from: 8 B, to: 9e18 B}}", "collective.sizes.to"),
        ("collective: {op: all_gather, counts: [9e18 B]}", "collective.counts"),
        (f"{CALL}seed: {'9' * 5000}", "seed"),
        (f"{CALL}perturb: {{late: [{{ranks: {'9' * 5000}, by: 1 s}}]}}", "perturb.late[0].ranks"),
    ],
)
def test_what_is_too_much_names_its_key(text, key):
    with pytest.raises(CollsimError) as found:
        loads(MACHINE + text + "\n", name="a.yaml")
    (problem,) = found.value.problems
    assert (problem.file, problem.key) == ("a.yaml", key)
    assert problem.line is not None
    assert problem.allowed
    assert len(problem.message) < 120


def test_no_number_of_digits_breaks_a_number():
    digits = "9" * 5000
    assert parse_count(digits) > 10**4999
    for parse in (parse_ranks, parse_size, parse_fraction):
        with pytest.raises(UnitError) as found:
            parse(digits)
        assert len(str(found.value)) < 200


OPERATION = "{compute: 1 us}"
DDP = "forward: 1 ms, backward: 1 ms"


@pytest.mark.parametrize(
    ("text", "key", "found"),
    [
        (
            f"programs: [{{do: [{{repeat: 1e6, do: [{OPERATION}]}}]}}]",
            "programs[0].do",
            "1,000,000",
        ),
        (
            f"programs: [{{do: [{{repeat: 1e6, do: [{{repeat: 1e6, do: [{OPERATION}]}}]}}]}}]",
            "programs[0].do",
            "1,000,000,000,000",
        ),
        (f"jobs: [{{name: a, repeat: 1e6, {CALL.strip()}}}]", "jobs[0].repeat", "1,000,000"),
        (
            f"jobs: [{{name: a, repeat: 1e5, generator: {{ddp: {{size: 1 GiB, {DDP}}}}}}}]",
            "jobs[0].repeat",
            "500,000",
        ),
        (
            f"generator: {{ddp: {{size: 1 GiB, layers: 1e6, bucket_cap: 1 B, {DDP}}}}}",
            "generator",
            "2,000,003",
        ),
        (f"generator: {{ddp: {{size: 1 GiB, iterations: 1e6, {DDP}}}}}", "generator", "5,000,000"),
        (
            f"generator: {{zero: {{stage: 2, parameters: 1e9, bucket: 1 B, {DDP}}}}}",
            "generator",
            "4,000,000,005",
        ),
        (
            f"generator: {{zero: {{stage: 3, parameters: 1e9, layers: 1e6, {DDP}}}}}",
            "generator",
            "7,000,003",
        ),
    ],
)
def test_operations_are_counted_before_they_are_built(text, key, found):
    begin = time.process_time()
    with pytest.raises(CollsimError) as error:
        loads(f"{MACHINE}{text}\n", name="a.yaml")
    assert time.process_time() - begin < 1
    assert str(error.value) == (
        f"a.yaml:3: {key}: makes {found} operations of each rank\n"
        f"  allowed: at most {MOST_OPERATIONS:,}."
    )


@pytest.mark.parametrize(
    "generator",
    [
        f"ddp: {{size: 100 MiB, layers: 7, iterations: 3, {DDP}}}",
        f"ddp: {{gradients: [1 MiB, 30 MiB, 2 MiB], bucket_cap: 1 B, {DDP}}}",
        f"zero: {{stage: 1, parameters: 1e6, layers: 5, {DDP}}}",
        f"zero: {{stage: 2, parameters: 1e6, layers: 5, bucket: 100 KiB, iterations: 2, {DDP}}}",
        f"zero: {{stage: 3, parameters: 1e6, layers: 5, bucket: 100 KiB, optimizer: 1 ms, {DDP}}}",
    ],
)
def test_the_count_of_a_generator_is_no_less_than_what_it_makes(generator):
    from simulator.compose.programs import _generated

    (resolved,) = loads(f"{MACHINE}generator: {{{generator}}}\n").variants
    made = _generated(resolved.generator)
    assert len(made) <= n_generated(resolved.generator) <= 2 * len(made) + 8


def test_operations_of_nested_repeats():
    text = (
        "[{compute: 1 us}, {repeat: 3, do: [{compute: 1 us}, {repeat: 4, do: [{compute: 1 s}]}]}]"
    )
    (resolved,) = loads(f"{MACHINE}programs: [{{do: {text}}}]\n").variants
    assert n_operations(resolved.programs[0].do) == 1 + 3 * (1 + 4)


FABRICS = [
    ("leaf_spine", "spines: 1e6", "makes 16,000,512 cables"),
    ("dragonfly", "global_links: 1e6", "makes 128,000,960 cables"),
    ("rail_optimized", "radix: 1e6", "makes 4,000,512 cables"),
    ("torus", "dimensions: 1e6", "1e6 is too large"),
    ("fat_tree", "radix: 1e9", "1e9 is too large"),
    ("rail_optimized", "rails: 1e9", "1e9 is too large"),
]


@pytest.mark.parametrize(("kind", "option", "told"), FABRICS)
def test_networks_are_counted_before_they_are_built(kind, option, told):
    from simulator.compose.build import build_fabric

    text = f"{MACHINE}nodes: 64\nfabric: {{kind: {kind}, {option}}}\n{CALL}"
    begin = time.process_time()
    with pytest.raises(CollsimError) as error:
        build_fabric(loads(text).variants[0])
    assert told in str(error.value)
    assert "allowed: " in str(error.value)
    assert time.process_time() - begin < 2


TOPOLOGY = """\
topology:
  templates:
  - name: n
    vertices: [{{name: gpu, kind: gpu, count: {gpus}}}, {{name: nic, kind: nic}}]
    links: [{{a: 'gpu*', b: nic, kind: pcie, bandwidth: 1 GB/s}}]
  repeat: [{{template: n, count: {nodes}}}]
  vertices: [{{name: s, kind: leaf, count: {switches}}}]
  links: [{{a: 'node*.nic', b: 's*', kind: infiniband, bandwidth: 1 GB/s}}]
"""


@pytest.mark.parametrize(
    ("gpus", "nodes", "switches", "told"),
    [
        (10**6, 1, 1, "templates[0].vertices[0].count: makes 1,000,000 vertices or nodes"),
        (1, 10**6, 1, "repeat[0].count: makes 1,000,001 vertices or nodes"),
        (1, 2, 10**6, "vertices[0].count: makes 1,000,003 vertices or nodes"),
        (1000, 1000, 1, "repeat[0].count: makes 1,000,000 GPUs"),
        (1, 10**5, 100, "links[0]: makes 10,000,001 links"),
    ],
)
def test_own_topologies_are_counted_before_they_are_built(gpus, nodes, switches, told):
    text = TOPOLOGY.format(gpus=gpus, nodes=nodes, switches=switches)
    begin = time.process_time()
    with pytest.raises(CollsimError) as error:
        loads(f"schema_version: 1\n{text}{CALL}", name="a.yaml")
    assert f"topology.{told}\n  allowed: at most " in str(error.value)
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("key", ["hidden", "layers", "heads", "ffn", "vocab", "experts"])
def test_dimensions_of_a_model(key):
    most = MOST_BLOCKS if key == "layers" else MOST_DIMENSION
    sizes = {"hidden": 1024, "layers": 2, "heads": 16, key: most + 1}
    with pytest.raises(CollsimError, match=f"{key}: {most + 1} is no size\n.*{most:,}"):
        from_dims(**sizes)


def test_parameters_of_a_model():
    assert MOST_PARAMETERS < 2**63 // 4
    text = "training: {model: custom, model_set: {hidden: 8388608, layers: 5000, heads: 64}}\n"
    from simulator.compose.run import run_resolved

    with pytest.raises(CollsimError, match="parameters"):
        run_resolved(loads(MACHINE + text).variants[0])


def test_the_largest_size_still_is_a_whole_number():
    assert exact_size(MOST_SIZE_BYTES) == "16 TiB"
    assert MOST_SIZE_BYTES * 262_144 < 2**63


def test_the_documentation_prints_the_table():
    page = markdown()
    assert all(f"| {what} | {most} |" in page for what, most in TABLE)
    assert len(TABLE) > 12
