"""``collsim fit`` from the outside: real logs, refusals, the file it writes, and its use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from simulator.costs.profile import load_profile

DATA = Path(__file__).parents[1] / "importers" / "data"
LOG = DATA / "superbench_nccl_allreduce.log"
GATHER = DATA / "superbench_nccl_allgather.log"
SLOW = str(LOG), "--node", "hgx-h100"
"""An A100's log called an H100's: half the bandwidth that it should have."""


@pytest.fixture(scope="session")
def fitted(tmp_path_factory) -> Path:
    """Return the profile of the shipped A100 log, fitted once."""
    from simulator.importers.nccl_tests import read
    from simulator.verdict.guess import guess
    from validation.fitting.machine import Table, fit_machine

    (table,) = read(str(LOG)).tables
    path = tmp_path_factory.mktemp("fit") / "mine.yaml"
    tables = [Table(file=str(LOG), table=table, set_up=guess(table))]
    path.write_text(fit_machine(tables, name="mine").text)
    return path


def value_at(document: dict, key: str) -> object:
    """Return the value of a dotted key; None where the file does not give it."""
    place: object = document
    for word in key.split("."):
        if not isinstance(place, dict) or word not in place:
            return None
        place = place[word]
    return place


def errors(out: str) -> dict[str, tuple[float, float]]:
    """Return median error before and after by range of sizes."""
    found = re.findall(r"^(\S+) +\d+ +([\d.]+) % +([\d.]+) % +[\d.]+ % +[\d.]+ %$", out, re.M)
    return {name: (float(a), float(b)) for name, a, b in found}


def test_a_real_log_becomes_a_profile(collsim, tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    done = collsim("fit", LOG, "--out", out, "-q")
    assert done.code == 0
    assert "verdict: healthy" in done.out
    shown = errors(done.out)
    assert set(shown) == {"all", "<1M", "1M-16M", ">=16M"}
    assert all(after < 0.5 * before for before, after in shown.values())
    assert "all_reduce, 8 ranks, 1 node, 4 B to 8 GiB" in done.out
    assert f"wrote {out}" in done.err
    assert "try: collsim bench all_reduce --node dgx-a100-40gb" in done.out
    body = [line for line in done.out.splitlines() if str(tmp_path) not in line]
    assert max(map(len, body)) <= 80


def test_the_file_says_what_it_rests_on(fitted: Path) -> None:
    import hashlib

    document = yaml.safe_load(fitted.read_text())
    told = document["fitted"]
    (data,) = told["data"]
    assert data["sha256"] == hashlib.sha256(LOG.read_bytes()).hexdigest()
    assert (data["collective"], data["ranks"], data["nodes"]) == ("all_reduce", 8, 1)
    assert data["rows"] == len(told["residuals"]["tables"][0]["rows"]) == 32
    assert told["ranges"][0]["sizes_bytes"] == [4, 8 << 30]
    for key, entry in told["constants"].items():
        assert (value_at(document, key) is not None) == entry["moved"]
        assert entry["spread"] > 0
    after, before = told["residuals"]["after"]["all"], told["residuals"]["before"]["all"]
    assert after["median"] < before["median"]


def test_the_file_is_a_cost_profile(collsim, fitted: Path, tmp_path: Path) -> None:
    words = "--node", "dgx-a100-40gb", "--set", "costs.gpus_per_process=8", "-q"
    done = collsim("compare", LOG, *words, "--costs", fitted)
    assert done.code == 0
    assert "outside its fit" not in done.err
    median = float(re.search(r"^all +\d+ +([\d.]+) %", done.out, re.M)[1])
    assert median < 3
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "mine.yaml").write_text(fitted.read_text())
    scenario = tmp_path / "deep" / "s.yaml"
    scenario.write_text(
        "schema_version: 1\nnode: dgx-a100-40gb\ncosts: {profile: mine.yaml, gpus_per_process: 8}\n"
        "collective: {op: all_reduce, size: 1G}\n"
    )
    # From where the scenario stands, wherever the command is called.
    ran = collsim("run", scenario, "-q")
    assert ran.code == 0
    assert "outside its fit" not in ran.err
    for command in (
        ("explain", "all_reduce", "--node", "dgx-a100-40gb", "--costs", fitted),
        ("step", "--model", "gpt2", "--node", "dgx-a100-40gb", "--costs", fitted, "-q"),
    ):
        assert collsim(*command).code == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("all_gather", "-b", "1M", "-e", "1M"), "outside its fit: all_gather."),
        (("all_reduce", "-b", "16G", "-e", "16G"), "all_reduce above 8 GiB"),
        (("all_reduce", "-b", "1M", "-e", "1M", "-g", "4"), "all_reduce of 4 ranks"),
        (("all_reduce", "-b", "1M", "-e", "1M", "--nodes", "2"), "all_reduce on 2 nodes"),
    ],
)
def test_one_warning_tells_what_lies_outside(collsim, fitted: Path, words, reason) -> None:
    done = collsim("bench", *words, "--node", "dgx-a100-40gb", "--costs", fitted, "-q")
    assert done.code == 0
    assert done.err.count("warning: ") == 1
    assert reason in done.err
    assert "Measured: all_reduce, 8 ranks, 1 node, 4 B to 8 GiB on dgx-a100-40gb" in done.err


def test_another_node_and_another_base_are_told(collsim, fitted: Path, tmp_path: Path) -> None:
    words = "bench", "all_reduce", "-b", "1M", "-e", "1M", "-q"
    other = collsim(*words, "--node", "dgx-a100-80gb", "--costs", fitted)
    assert "outside its fit: node dgx-a100-80gb" in other.err
    old = tmp_path / "old.yaml"
    old.write_text(re.sub(r"base_identity: \w+", "base_identity: abc", fitted.read_text()))
    told = collsim(*words, "--node", "dgx-a100-40gb", "--costs", old)
    assert "another version of the profile nccl" in told.err


def test_compare_and_check_tell_rows_outside(collsim, fitted: Path) -> None:
    for command in ("compare", "check"):
        done = collsim(command, GATHER, "--costs", fitted, "-q")
        assert "outside its fit: all_gather." in done.err


def test_a_sick_machine_is_refused(collsim, tmp_path: Path) -> None:
    out = tmp_path / "x.yaml"
    done = collsim("fit", *SLOW, "--out", out, "-q")
    assert done.code == 2
    assert re.search(r"the machine is sick: .*all_reduce >=256M", done.err)
    assert f"collsim check {LOG} --node hgx-h100" in done.err
    assert not out.exists()


def test_a_suspicious_machine_is_fitted_with_a_warning(collsim, tmp_path: Path) -> None:
    def slower(line: str) -> str:
        words = line.split()
        if len(words) < 12 or not words[0].isdigit() or int(words[0]) < 16 << 20:
            return line
        for place in (4, 8):
            words[place] = f"{1.45 * float(words[place]):.1f}"
        return " ".join(words)

    log, out = tmp_path / "slow.log", tmp_path / "x.yaml"
    log.write_text("\n".join(map(slower, LOG.read_text().splitlines())) + "\n")
    done = collsim("fit", log, "--node", "dgx-a100-40gb", "--out", out, "-q")
    assert done.code == 0
    assert re.search(r"is suspicious, and fitted as it is: .*all_reduce", done.err)
    assert yaml.safe_load(out.read_text())["fitted"]["health"] == "suspicious"


def test_too_little_and_sick_are_told_together(collsim, tmp_path: Path) -> None:
    log = tmp_path / "short.log"
    lines = LOG.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.split()[:1] == ["268435456"])
    head = next(i for i, line in enumerate(lines) if line.split()[:1] == ["0"])
    log.write_text("\n".join([*lines[:head], *lines[first : first + 5]]) + "\n")
    out = tmp_path / "x.yaml"
    done = collsim("fit", log, "--node", "hgx-h100", "--out", out, "-q")
    assert done.code == 2
    assert "5 rows" in done.err
    assert "sick" in done.err
    assert list(tmp_path.iterdir()) == [log]


def test_times_that_are_not_positive_are_refused_with_their_lines(collsim, tmp_path: Path) -> None:
    log = tmp_path / "zero.log"
    lines = LOG.read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if line.split()[:1] == ["1048576"])
    lines[place] = re.sub(r"\d+\.\d+", "0.00", lines[place])
    log.write_text("\n".join(lines) + "\n")
    done = collsim("fit", log, "--out", tmp_path / "x.yaml", "-q")
    assert done.code == 2
    assert f"zero.log:{place + 1}: the time of 1048576 B is not above zero" in done.err


def test_machines_and_libraries_are_not_mixed(collsim, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text(LOG.read_text().replace("A100-SXM4-40GB", "A100-SXM4-80GB"))
    done = collsim("fit", LOG, other, "--out", tmp_path / "x.yaml", "-q")
    assert done.code == 2
    assert "dgx-a100-40gb in" in done.err
    assert "dgx-a100-80gb in" in done.err
    mpi = collsim("fit", LOG, "--costs", "mpi", "--out", tmp_path / "x.yaml", "-q")
    assert (mpi.code, "'mpi' is not one that can be fitted" in mpi.err) == (2, True)


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        ("there.yaml", "is there already"),
        ("mine", "no name of a profile's file"),
        ("no/x.yaml", "no folder"),
    ],
)
def test_places_are_checked_before_anything_is_done(collsim, tmp_path, out, reason) -> None:
    (tmp_path / "there.yaml").write_text("kept")
    done = collsim("fit", LOG, "--out", tmp_path / out, "-q")
    assert done.code == 2
    assert reason in done.err
    assert done.out == ""
    assert (tmp_path / "there.yaml").read_text() == "kept"


def test_force_overwrites(collsim, fitted: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    out.write_text("old")
    assert collsim("fit", LOG, "--out", out, "--force", "-q").code == 0
    assert load_profile(str(out)).calibration is not None
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize("command", ["compare", "check", "fit"])
def test_a_log_comes_through_a_pipe(collsim, monkeypatch, tmp_path: Path, command: str) -> None:
    import io
    import sys

    stream = io.TextIOWrapper(io.BytesIO(LOG.read_bytes()))
    monkeypatch.setattr(sys, "stdin", stream)
    more = ("--out", tmp_path / "x.yaml") if command == "fit" else ()
    done = collsim(command, "-", "-q", *more)
    assert done.code == 0
    assert "all_reduce" in done.out


def test_a_machine_faster_than_the_set_up_is_refused(collsim, tmp_path: Path) -> None:
    out = tmp_path / "x.yaml"
    done = collsim("fit", LOG, "--node", "dgx1-v100", "--out", out, "-q")
    assert done.code == 2
    assert re.search(r"allreduce.log:50: all_reduce: 8 GiB took .* the links need", done.err)
    assert "8 rows in lines 43 to 50 are faster than the links" in done.err
    assert "the machine is faster than this set-up" in done.err
    assert "fitted as it is" not in done.err
    assert not out.exists()


def test_contradicting_logs_are_refused(collsim, tmp_path: Path) -> None:
    def slower(line: str) -> str:
        words = line.split()
        if len(words) < 12 or not words[0].isdigit() or words[0] == "0":
            return line
        for place in (4, 8):
            words[place] = f"{1.4 * float(words[place]):.1f}"
        return " ".join(words)

    log, out = tmp_path / "slow.log", tmp_path / "x.yaml"
    log.write_text("\n".join(map(slower, LOG.read_text().splitlines())) + "\n")
    done = collsim("fit", LOG, log, "--out", out, "-q")
    assert done.code == 2
    assert re.search(r"slow.log:\d+: all_reduce of 8 ranks: .* by a factor of 1.40", done.err)
    assert not out.exists()


def test_one_log_twice_counts_once(collsim, tmp_path: Path) -> None:
    copy, out = tmp_path / "copy.log", tmp_path / "x.yaml"
    copy.write_bytes(LOG.read_bytes())
    done = collsim("fit", LOG, copy, "--out", out, "-q")
    assert done.code == 0
    assert f"warning: {copy}: the same as {LOG}: counted once" in done.err
    assert len(yaml.safe_load(out.read_text())["fitted"]["data"]) == 1


def test_a_flag_that_the_log_overrules_is_told(collsim, tmp_path: Path) -> None:
    done = collsim("fit", "--collective", "broadcast", LOG, "--out", tmp_path / "x.yaml", "-q")
    assert done.code == 0
    assert "one of all_reduce, as the log tells: --collective broadcast is not used" in done.err


def test_the_name_of_a_shipped_profile_is_refused(collsim, tmp_path: Path) -> None:
    for words in (
        ("--name", "nccl", "--out", tmp_path / "x.yaml"),
        ("--out", tmp_path / "gloo.yaml"),
    ):
        done = collsim("fit", LOG, *words, "-q")
        assert (done.code, "is a shipped profile" in done.err) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_pipe_is_named_as_it_was_given(collsim, monkeypatch, tmp_path: Path) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    done = collsim("fit", "-", "--out", tmp_path / "x.yaml", "-q")
    assert (done.code, done.err.strip()) == (2, "-: the file is empty")


def test_a_link_to_no_file_is_followed_and_stays(collsim, tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to("target.yaml")
    refused = collsim("fit", LOG, "--node", "dgx1-v100", "--out", link, "-q")
    assert refused.code == 2
    assert list(tmp_path.iterdir()) == [link]
    assert link.is_symlink()
    assert collsim("fit", LOG, "--out", link, "-q").code == 0
    assert link.is_symlink()
    assert load_profile(str(tmp_path / "target.yaml")).calibration is not None


def test_a_profile_that_cannot_be_fitted_is_refused_before_a_verdict(collsim, tmp_path) -> None:
    done = collsim("fit", LOG, "--costs", "gloo", "--out", tmp_path / "x.yaml", "-q")
    assert done.code == 2
    assert "'gloo' is not one that can be fitted" in done.err
    assert "verdict" not in done.out
    assert "%" not in done.err
