"""One file per broken rule: its whole message stands beside it.

Lists that grow with the project are written as names in braces, so that a new algorithm or preset
changes no expectation here: ``{algorithms all_reduce}``, ``{fabrics}``, ``{presets}``, ``{top}``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulator.base.errors import CollsimError, ScenarioError
from simulator.scenario import load, plugins
from simulator.scenario.reader import declared
from simulator.scenario.resolved import Resolved
from topologies import hardware

HERE = Path(__file__).parent
CASES = sorted(path.stem for path in HERE.glob("*.yaml"))


def listed(match: re.Match[str]) -> str:
    what, _, of = match[1].partition(" ")
    if what == "algorithms":
        return ", ".join(["auto", *plugins.algorithm_names(of)])
    if what == "fabrics":
        return ", ".join(plugins.fabric_kinds())
    if what == "fabric":
        options = plugins.fabric_options(of)
        return ", ".join(sorted(["kind", *(item.key for item in declared(options))]))
    if what == "presets":
        return ", ".join(name for name in hardware.names() if not name.startswith("pcie-"))
    assert what == "top"
    return ", ".join(sorted(["base", "patches", *(item.key for item in declared(Resolved))]))


def test_there_is_a_case_for_every_kind_of_slip():
    assert len(CASES) > 150
    assert sorted(path.stem for path in HERE.glob("*.txt")) == CASES


@pytest.mark.parametrize("case", CASES)
def test_message_is_exactly_the_expected_one(case, monkeypatch):
    monkeypatch.chdir(HERE)
    expected = (HERE / f"{case}.txt").read_text("utf-8").rstrip("\n")
    with pytest.raises(CollsimError) as found:
        load(f"{case}.yaml")
    assert str(found.value) == re.sub(r"\{([a-z]+(?: [a-z_]+)?)\}", listed, expected)
    assert found.value.exit_code == 2


@pytest.mark.parametrize("case", CASES)
def test_every_problem_names_its_file(case, monkeypatch):
    monkeypatch.chdir(HERE)
    with pytest.raises(CollsimError) as found:
        load(f"{case}.yaml")
    assert all(problem.file.endswith(".yaml") for problem in found.value.problems)


def test_missing_file_shows_the_nearest(tmp_path):
    (tmp_path / "sweep.yaml").write_text("a: 1")
    with pytest.raises(ScenarioError) as found:
        load(tmp_path / "sweeep.yaml")
    assert str(found.value) == (
        f"{tmp_path}/sweeep.yaml: no such file\n  Did you mean '{tmp_path}/sweep.yaml'?"
    )


def test_missing_folder(tmp_path):
    with pytest.raises(ScenarioError) as found:
        load(tmp_path / "nowhere" / "a.yaml")
    assert str(found.value) == f"{tmp_path}/nowhere/a.yaml: no such file"


def test_directory(tmp_path):
    with pytest.raises(ScenarioError) as found:
        load(tmp_path)
    assert str(found.value) == f"{tmp_path}: is a directory\n  allowed: a scenario file."


def test_file_without_permission(tmp_path, monkeypatch):
    def refuse(*_args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ScenarioError) as found:
        load(tmp_path / "a.yaml")
    assert str(found.value) == f"{tmp_path}/a.yaml: cannot be read: Permission denied"


def test_file_name_with_a_null_byte():
    with pytest.raises(ScenarioError) as found:
        load("a\0b.yaml")
    assert str(found.value) == r"a\x00b.yaml: cannot be read: embedded null byte"


def test_file_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr("simulator.scenario.tree.MAX_FILE_BYTES", 1 << 20)
    (tmp_path / "a.yaml").write_text("#" * ((1 << 20) + 1))
    with pytest.raises(ScenarioError) as found:
        load(tmp_path / "a.yaml")
    assert str(found.value) == f"{tmp_path}/a.yaml: is too large\n  allowed: ≤ 1 MiB."


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("nodes", "--set: 'nodes' sets nothing\n  allowed: key=value, such as "),
        ("=4", "--set: '=4' sets nothing\n  allowed: key=value, such as "),
        ("nodez=4", "--set: nodez: unknown key 'nodez'\n  allowed: "),
        ("nodes=four", "--set: nodes: 'four' is not a whole number\n  allowed: such as 8 or 7e9."),
        ("nodes=[1", "--set: nodes: is not YAML: did not find expected ',' or ']'"),
        ("seed=-1", "--set: seed: -1 is negative\n  allowed: a whole number ≥ 0."),
        ("collective.size=1 Gbit", "--set: collective.size: '1 Gbit' has the unknown unit"),
        ("perturb.late.7.by=1 ms", "--set: perturb.late.7.by: there is no entry [7]\n"),
        ("base=other.yaml", "--set: base: cannot be set here\n  allowed: in the file."),
    ],
)
def test_words_of_the_command_line(word, message, tmp_path):
    (tmp_path / "a.yaml").write_text(
        "schema_version: 1\nnode: dgx-h100\nnodes: 2\n"
        "collective: {op: all_reduce, size: 1 MiB}\n"
        "perturb: {late: [{ranks: 3, by: 1 ms}]}\n"
    )
    with pytest.raises(ScenarioError) as found:
        load(tmp_path / "a.yaml", overrides=[word])
    assert str(found.value).startswith(message)
