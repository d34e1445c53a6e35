"""Files of every kind: pipes, devices, links, permissions, full disks, inputs and outputs."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from simulator.importers.nccl_tests import read
from simulator.results.files import write_bytes

ONE = ("-b", "1M", "-e", "1M", "-q")
CODE = "from simulator.cli import main; main()"
LOG = Path(__file__).parents[1] / "importers" / "data" / "superbench_nccl_allreduce.log"


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in a folder; ``collsim`` in it is this tree's."""
    line = f'collsim() {{ "{sys.executable}" -c "{CODE}" "$@"; }}; {command}'
    words = ["bash", "-c", line]
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(
        "schema_version: 1\nnode: 4xH100\ncollective: {op: all_reduce, sizes: [1 MiB]}\n"
    )
    return path


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    path = tmp_path / "swept.yaml"
    path.write_text(
        "schema_version: 1\nnode: [4xH100, 4xA100]\ncollective: {op: all_gather, size: 1 MiB}\n"
    )
    return path


# -- pipes and devices -------------------------------------------------------------------------


def test_a_named_pipe_is_written_once_and_whole(collsim, tmp_path: Path):
    pipe, plain = tmp_path / "pipe", tmp_path / "plain.csv"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    assert collsim("bench", *ONE, "--csv", pipe, "--node", "4xH100").code == 0
    reader.join(10)
    collsim("bench", *ONE, "--csv", plain, "--node", "4xH100")
    assert got == [plain.read_bytes()]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_process_substitution_as_output_and_input(tmp_path: Path):
    done = shell("collsim bench -b 1M -e 1M -q --json >(cat > got.json) > table; sleep 1", tmp_path)
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "got.json").read_text())["rows"]
    done = shell(f"collsim compare <(cat {LOG}) --node dgx-a100 -q --csv -", tmp_path)
    assert (done.returncode, len(done.stdout.splitlines()) > 2) == (0, True), done.stderr


def test_a_pipe_is_read_as_the_file(tmp_path: Path):
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(LOG.read_bytes()))
    writer.start()
    found = read(str(pipe))
    writer.join(10)
    (table,), (same,) = found.tables, read(str(LOG)).tables
    assert table.rows == same.rows


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "-"])
def test_standard_output_by_any_name_is_for_the_document_alone(tmp_path: Path, name: str):
    if not Path(name).parent.is_dir():
        pytest.skip(f"no {name} here")
    done = shell(f"collsim bench -b 1M -e 1M -q --json {name} > got.json", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "got.json").read_text())["rows"]


def test_an_open_descriptor_is_written_where_it_stands(tmp_path: Path):
    line = "exec 3> got; echo first >&3; collsim bench -b 1M -e 1M -q --csv /dev/fd/3 > table"
    assert shell(line + "; echo last >&3", tmp_path).returncode == 0
    lines = (tmp_path / "got").read_text().splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("first", "last", 4)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_stops_no_other_file(collsim, tmp_path: Path):
    done = collsim("bench", *ONE, "--csv", "/dev/full", "--json", tmp_path / "a.json")
    assert done.code == 2
    assert "/dev/full: cannot write: No space left on device" in done.err
    assert f"wrote {tmp_path / 'a.json'}" in done.err
    assert "all_reduce" in done.out
    assert json.loads((tmp_path / "a.json").read_text())["rows"]


def test_a_reader_that_has_gone_loses_no_file(tmp_path: Path):
    words = "-m resnet-50 --node 4xA100 --framework torch --ranks"
    done = shell(
        f"collsim step {words} --json a.json | true; echo ${{PIPESTATUS[0]}} >&2", tmp_path
    )
    assert json.loads((tmp_path / "a.json").read_text())["training"]
    assert "Traceback" not in done.stderr


# -- one place, one file -----------------------------------------------------------------------


def test_an_input_is_not_overwritten(collsim, scenario: Path, tmp_path: Path):
    before = scenario.read_text()
    other = tmp_path / "other"
    other.symlink_to(scenario)
    for name in (scenario, other, tmp_path / "." / "small.yaml"):
        done = collsim("run", scenario, "--csv", name)
        assert (done.code, done.out) == (2, "")
        assert f"it is the input {scenario}" in done.err
    assert scenario.read_text() == before
    log = tmp_path / "a.log"
    log.write_bytes(LOG.read_bytes())
    for command in ("check", "compare"):
        assert "it is the input" in collsim(command, log, "--json", log).err
    assert log.read_bytes() == LOG.read_bytes()


@pytest.mark.parametrize("second", ["a.csv", "./a.csv", "b/../a.csv"])
def test_two_outputs_on_one_path_are_refused(
    collsim, tmp_path: Path, second: str, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path)
    done = collsim("bench", *ONE, "--csv", "a.csv", "--json", second)
    assert (done.code, done.out) == (2, "")
    assert f"{second}: cannot write: two outputs have this place" in done.err
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.parametrize("option", ["--trace=a.json", "--plot=gantt.png", "--plot=links.png"])
def test_what_shows_one_run_is_refused_for_several(collsim, swept: Path, option: str):
    done = collsim("run", swept, "-q", option)
    assert (done.code, done.out) == (2, "")
    assert "shows one run, and several variants are asked for" in done.err


def test_a_scenario_overwrites_nothing_unasked(collsim, tmp_path: Path):
    path, table = tmp_path / "a.yaml", tmp_path / "mine.csv"
    path.write_text(
        "schema_version: 1\nnode: 4xH100\ncollective: {op: all_reduce, size: 1 MiB}\n"
        f"output: {{folder: {tmp_path}, csv: mine.csv}}\n"
    )
    table.write_text("precious")
    done = collsim("run", path, "-q")
    assert (done.code, done.out) == (2, "")
    assert "is there already, and the scenario would overwrite it" in done.err
    assert table.read_text() == "precious"
    assert collsim("run", path, "-q", "--csv", table).code == 0  # named by who runs it
    table.write_text("precious")
    assert collsim("run", path, "-q", "--force").code == 0
    assert table.read_text().startswith("variant,")
    table.unlink()
    assert collsim("run", path, "-q").code == 0


# -- permissions and links ---------------------------------------------------------------------


def test_permissions_are_those_of_the_file_or_the_umask(tmp_path: Path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("x")
    old.chmod(0o640)
    before = os.umask(0o027)
    try:
        write_bytes(old, b"y")
        write_bytes(new, b"y")
    finally:
        os.umask(before)
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert stat.S_IMODE(new.stat().st_mode) == 0o640
    old.chmod(0o604)
    write_bytes(old, b"z")
    assert (stat.S_IMODE(old.stat().st_mode), old.read_bytes()) == (0o604, b"z")


def test_the_longest_name_can_be_written(tmp_path: Path):
    path = tmp_path / ("n" * 255)
    write_bytes(path, b"x")
    assert path.read_bytes() == b"x"


def test_a_file_in_a_closed_folder_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a"
    path.write_text("a longer old content")

    def closed(name, *args, **options):
        if str(name).endswith(".part"):
            raise PermissionError(13, "Permission denied")
        return open(name, *args, **options)

    monkeypatch.setattr("simulator.results.files.open", closed, raising=False)
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("name", ["a\0b", "n" * 300, "missing/a.csv", "."])
def test_a_name_that_cannot_be_written_is_refused_before(collsim, tmp_path: Path, name: str):
    done = collsim("bench", *ONE, "--csv", f"{tmp_path}/{name}")
    assert (done.code, done.out) == (2, "")
    assert "cannot write: " in done.err
