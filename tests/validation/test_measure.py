"""The harness measures for real: gloo on 2 and 4 processes; NCCL where there are GPUs."""

import json
import os
import socket
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch", reason="the extra 'measure' is not installed")

from simulator.collectives.names import busbw_factor  # noqa: E402
from simulator.importers.nccl_tests import read  # noqa: E402
from validation import measure  # noqa: E402
from validation.harness.environment import busy  # noqa: E402
from validation.harness.micro import doubts  # noqa: E402
from validation.harness.pattern import Pattern  # noqa: E402
from validation.measure import MeasureError, MeasureOptions, MicroRow  # noqa: E402

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
ALL = (
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    *("all_to_all", "gather", "scatter", "send_recv", "barrier"),
)
FAST = {"backend": "gloo", "iterations": 2, "warmup": 1, "timeout_s": 120.0}


def measured(**options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return measure.run_measure(MeasureOptions(**FAST, **options))


def halves(measurement):
    return [
        half
        for table in measurement.tables
        for row in table.rows
        for half in (row.out_of_place, row.in_place)
        if half is not None
    ]


@pytest.fixture(scope="module")
def two_ranks():
    return measured(collectives=ALL, ranks=2, min_bytes=8, max_bytes=8192, factor=32, root=1)


def test_every_collective_on_two_ranks_gives_right_data_and_times(two_ranks):
    assert [table.collective for table in two_ranks.tables] == list(ALL)
    assert (two_ranks.n_ranks, two_ranks.n_nodes, two_ranks.backend) == (2, 1, "gloo")
    assert len(halves(two_ranks)) == 3 * (3 * 1 + 2 * 2 + 4 * 1) + 1
    for half in halves(two_ranks):
        assert half.wrong == 0
        assert 0 < half.min_s <= half.time_s <= half.max_s


def test_bandwidths_follow_from_size_and_time(two_ranks):
    for table in two_ranks.tables:
        for row in table.rows:
            for half in (row.out_of_place, row.in_place):
                if half is not None:
                    assert half.algbw_Bps == pytest.approx(row.size_bytes / half.time_s)
                    factor = busbw_factor(table.collective, 2)
                    assert half.busbw_Bps == pytest.approx(half.algbw_Bps * factor)


def test_count_is_per_rank_where_each_rank_has_a_part(two_ranks):
    rows = {table.collective: table.rows[-1] for table in two_ranks.tables}
    assert (rows["all_reduce"].size_bytes, rows["all_reduce"].count) == (8192, 2048)
    assert (rows["all_gather"].size_bytes, rows["all_gather"].count) == (8192, 1024)


def test_table_is_read_back_by_the_importer_of_nccl_tests(two_ranks):
    log = read(measure.measurement_text(two_ranks))
    tables = {table.collective: table for table in log.tables}
    assert set(tables) == set(ALL)
    for table in two_ranks.tables:
        found = tables[table.collective]
        assert (found.n_ranks, found.n_nodes, found.root) == (2, 1, table.root)
        for row, printed in zip(table.rows, found.rows, strict=True):
            assert (printed.size_bytes, printed.count) == (row.size_bytes, row.count)
            assert (printed.out_of_place is None) == (row.out_of_place is None)
            assert (printed.in_place is None) == (row.in_place is None)
            if row.in_place is not None:
                assert printed.in_place.time_s == pytest.approx(row.in_place.time_s, rel=1e-3)


def test_json_gives_the_same_measurement_back(two_ranks, tmp_path):
    path = tmp_path / "out.json"
    path.write_text(json.dumps(two_ranks.to_dict()))
    assert measure.read_measurement(path) == two_ranks


def test_record_describes_the_machine_without_naming_it(two_ranks):
    environment = two_ranks.environment
    assert environment["torch"] == torch.__version__
    assert environment["cpu"]
    assert environment["nodes"] == [0, 0]
    name = socket.gethostname()
    if len(name) > 3:
        assert name not in json.dumps(two_ranks.to_dict())


def test_schedules_on_four_ranks_give_the_same_right_data():
    found = measured(
        collectives=("all_reduce", "reduce_scatter", "broadcast"),
        **{"algorithms": ("library", "ring"), "ranks": 4, "channels": 2, "root": 3},
        **{"min_bytes": 4 * 4 * 33, "max_bytes": 4 * 4 * 33},
    )
    assert [table.algorithm for table in found.tables] == ["library", "ring"] * 3
    assert [half.wrong for half in halves(found)] == [0] * len(halves(found))
    assert len(halves(found)) == (1 + 1) * 2 + (2 + 1)


def test_schedules_with_packed_and_overlapping_messages_give_right_data():
    found = measured(
        collectives=("all_reduce",),
        algorithms=("recursive_doubling", "hierarchical"),
        **{"ranks": 4, "ranks_per_node": 2, "redop": "max", "dtype": "int32"},
        **{"min_bytes": 4 * 101, "max_bytes": 4 * 101},
    )
    assert [half.wrong for half in halves(found)] == [0] * 2


def micro_row(time_s=1e-5, low=1.0, high=1.0, cpu_share=1.0):
    return MicroRow(
        kind="copy",
        shape=(131072,),
        dtype="uint8",
        time_s=time_s,
        rate=131072 / time_s,
        low_s=low * time_s,
        high_s=high * time_s,
        cpu_share=cpu_share,
    )


def test_microbenchmarks_that_say_little_are_told():
    assert doubts([micro_row(), micro_row(low=0.9, high=1.1)]) == []
    (far,) = doubts([micro_row(), micro_row(low=0.8, high=1.6)])
    assert "1 of 2" in far
    assert "quartiles 8 and 16 us" in far
    # Repetitions that all wait alike for a core lie close together, and are all too long.
    (late,) = doubts([micro_row(time_s=1e-2, cpu_share=0.5), micro_row(cpu_share=None)])
    assert "50 % of the time" in late


def test_quartiles_stand_beside_the_time():
    good, bad = micro_row(low=0.9, high=1.1), micro_row(low=0.8, high=1.6)
    document = measure.Measurement(
        backend="gloo",
        n_ranks=1,
        n_nodes=1,
        options=MeasureOptions(copy=True),
        environment={},
        micro=(good, bad),
    ).to_dict()
    text = measure.measurement_text(measure.Measurement.from_dict(document))
    assert "9.00 … 11.00 " in text
    assert "8.00 … 16.00 !" in text
    for row in document["micro"]:  # a record of before has no quartiles
        del row["low_s"], row["high_s"], row["cpu_share"]
    old = measure.Measurement.from_dict(document)
    assert not old.micro[0].is_far_apart
    assert "…" not in measure.measurement_text(old)


def test_a_busy_machine_is_told(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 9.0, 9.0))
    assert busy() == []
    monkeypatch.setattr(os, "getloadavg", lambda: (6.5, 0.0, 0.0))
    assert "a load of 6.5 on 4 cores" in busy()[0]


def test_microbenchmarks_of_the_cpu():
    found = measured(
        **{"collectives": (), "ranks": 1, "matmul": True, "copy": True},
        **{"min_bytes": 1 << 16, "max_bytes": 1 << 16},
    )
    kinds = {row.kind for row in found.micro}
    assert kinds == {"matmul", "copy", "add", "launch"}
    for row in found.micro:
        assert row.low_s <= row.time_s <= row.high_s
        assert row.cpu_share > 0
        work = (
            row.shape[0] if row.kind != "matmul" else 2 * row.shape[0] * row.shape[1] * row.shape[2]
        )
        assert row.rate == pytest.approx(work / row.time_s)
    assert "TFLOP/s" in measure.measurement_text(found)


def test_under_torchrun_rank_zero_reports(tmp_path):
    path = tmp_path / "out.json"
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
    command += ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    command += ["-m", "validation.measure", "all_reduce", "--backend", "gloo", "-b", "64"]
    command += ["-e", "64", "-n", "2", "-w", "0", "--json", str(path)]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# Collective test starting: all_reduce_perf") == 1
    assert measure.read_measurement(path).n_ranks == 2


@pytest.mark.parametrize(
    "names",
    [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    ],
)
def test_mpirun_and_srun_make_one_test_of_all_ranks(tmp_path, names):
    path = tmp_path / "out.json"
    command = [sys.executable, "-W", "ignore", "-m", "validation.measure", "all_reduce"]
    command += ["--backend", "gloo", "-b", "64", "-e", "64", "-n", "5", "-w", "0"]
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI", "PMI", "SLURM"))}
    both = []
    for rank in (0, 1):
        own = dict(zip(names, (str(rank), "2", "2"), strict=True))
        own |= {"SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": str(os.getpid())}
        both.append(
            subprocess.Popen(
                [*command, *(["--json", str(path)] if rank == 0 else [])],
                env=plain | {"OMP_NUM_THREADS": "1"} | own,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said[1][0] == ""  # Rank 0 alone reports.
    found = measure.read_measurement(path)
    assert found.n_ranks == 2
    assert any("four in five repetitions" in note for note in found.notes)


def test_a_launcher_that_does_not_tell_where_rank_0_is_is_asked():
    from validation.harness.launcher import launched

    far = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}
    with pytest.raises(measure.MeasureError, match="MASTER_ADDR"):
        launched({**far, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"})
    assert launched({**far, "MASTER_ADDR": "a", "MASTER_PORT": "1"}).address == {}
    step = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "n[07-08]"}
    assert launched(step).address["MASTER_ADDR"] == "n07"
    # Ranks of one job meet at one port, a batch script alone is no rank.
    ports = {launched({**step, "SLURM_PROCID": rank}).address["MASTER_PORT"] for rank in "0123"}
    assert len(ports) == 1
    assert launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None


def test_more_ranks_than_cores_are_told():
    from validation.harness.environment import crowded

    assert crowded(1) == []
    assert "100000 ranks share" in crowded(100_000)[0]


# ---- the data check can fail ------------------------------------------------------------------


@pytest.mark.parametrize("redop", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", ["int8", "half", "bfloat16", "float", "double"])
def test_pattern_tells_a_missing_or_doubled_contribution(redop, dtype):
    n, length = 8, 500
    pattern = Pattern(n, dtype, redop)
    kinds = {"half": torch.float16, "float": torch.float32, "double": torch.float64}
    kind = kinds.get(dtype) or getattr(torch, dtype)
    each = []
    for rank in range(n):
        view = torch.empty(length, dtype=kind)
        pattern.fill(view, rank, 3)
        each.append(view)
        assert pattern.wrong(view, rank, 3) == 0
        # Another rank's data, or the same shifted by one, is found.
        assert pattern.wrong(view, (rank + 1) % n, 3) > 0
        assert redop == "prod" or pattern.wrong(view, rank, 4) > 0
    combine = {
        "sum": lambda x: x.sum(0),
        "prod": lambda x: x.prod(0),
        "min": lambda x: x.min(0).values,
        "max": lambda x: x.max(0).values,
    }[redop]
    whole = combine(torch.stack(each)).to(kind)
    assert pattern.wrong(whole, None, 3) == 0
    if redop in ("sum", "prod"):
        assert pattern.wrong(combine(torch.stack(each[:-1])).to(kind), None, 3) > 0
        assert pattern.wrong(combine(torch.stack([*each, each[0]])).to(kind), None, 3) > 0


def test_sum_stays_exact_for_many_ranks():
    # bfloat16 is exact up to 256: with 100 ranks the numbers are 0 and 1, the sum at most 100.
    assert Pattern(100, "bfloat16", "sum").modulus == 2
    assert Pattern(8, "float", "sum").modulus == 8


# ---- bad requests -----------------------------------------------------------------------------


def test_all_bad_options_are_reported_at_once():
    options = MeasureOptions(
        collectives=("all_redcue",),
        **{"dtype": "floot", "redop": "avg", "backend": "mpi", "iterations": 0, "factor": 1},
    )
    with pytest.raises(MeasureError) as caught:
        measure.run_measure(options)
    text = str(caught.value)
    for words in ("all_reduce", "float", "avg", "mpi", "iterations", "factor"):
        assert words in text


def test_unknown_schedule_names_the_known_ones():
    with pytest.raises(MeasureError, match="Did you mean 'ring'"):
        measure.run_measure(MeasureOptions(algorithms=("rign",)))


def test_root_outside_the_world_is_refused_before_any_process_starts():
    with pytest.raises(MeasureError, match="root 5 is outside the world"):
        measure.run_measure(MeasureOptions(ranks=2, root=5))


def test_reason_of_a_failed_rank_is_reported(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuchdevice")
    with pytest.raises(MeasureError, match=r"rank 0 failed: .*nosuchdevice"):
        measured(ranks=1, max_bytes=64)


def test_command_line_reports_errors_on_stderr(capsys):
    assert measure.main(["all_reduce", "-d", "floot"]) == 2
    assert "floot" in capsys.readouterr().err


@pytest.mark.skipif(GPUS > 0, reason="this machine has GPUs")
def test_nccl_without_gpus_is_refused():
    with pytest.raises(MeasureError, match="0 GPUs"):
        measure.run_measure(MeasureOptions(backend="nccl", ranks=2))


def test_file_that_is_no_measurement_is_refused(tmp_path):
    path = tmp_path / "x.json"
    for text, words in (("{", "cannot be read"), ('{"version": 9}', "version 9"), ("[]", "not a")):
        path.write_text(text)
        with pytest.raises(MeasureError, match=words):
            measure.read_measurement(path)


# ---- what a GPU run does, with stubs in place of the GPUs -----------------------------------


@pytest.fixture
def fake_gpus(monkeypatch):
    """Two GPUs and NCCL that only write down what they are asked for."""
    from validation.harness import launch, worker

    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: seen.append(("device", device)))
    dist = torch.distributed
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, **more: seen.append((backend, more))
    )
    monkeypatch.setattr(dist, "destroy_process_group", lambda: seen.append(("destroy", None)))
    monkeypatch.setattr(
        worker, "measure_in_group", lambda options, group: seen.append(("measure", group))
    )
    monkeypatch.delenv("NCCL_TOPO_DUMP_FILE", raising=False)
    yield launch, seen
    os.environ.pop("NCCL_TOPO_DUMP_FILE", None)


def test_a_rank_takes_its_gpu_before_nccl_begins(fake_gpus):
    launch, seen = fake_gpus
    launch._rank(MeasureOptions(backend="nccl"), 3, 4, 1, "env://")
    assert [name for name, _ in seen] == ["device", "nccl", "measure", "destroy"]
    gpu = torch.device("cuda", 1)
    assert seen[0][1] == gpu
    assert seen[1][1]["device_id"] == gpu
    assert (seen[1][1]["rank"], seen[1][1]["world_size"]) == (3, 4)
    assert seen[2][1].device == gpu
    assert "NCCL_TOPO_DUMP_FILE" in os.environ


def test_auto_takes_nccl_where_every_local_rank_has_a_gpu(fake_gpus, monkeypatch):
    launch, seen = fake_gpus
    for local_size, backend in (("2", "nccl"), ("4", "gloo")):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local_size)
        launch._rank(MeasureOptions(), 5, 8, 1, "env://")
        assert backend in [name for name, _ in seen]
        seen.clear()


def test_a_rank_without_a_gpu_is_refused(fake_gpus):
    launch, _ = fake_gpus
    with pytest.raises(MeasureError, match="local rank 2 has no GPU: 2 here"):
        launch._rank(MeasureOptions(backend="nccl"), 2, 4, 2, "env://")


def test_after_an_error_nobody_waits_for_the_others(fake_gpus, monkeypatch):
    from validation.harness import worker

    launch, seen = fake_gpus

    def broken(options, group):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(worker, "measure_in_group", broken)
    with pytest.raises(RuntimeError, match="memory"):
        launch._rank(MeasureOptions(backend="nccl"), 0, 2, 0, "env://")
    assert "destroy" not in [name for name, _ in seen]


@pytest.mark.parametrize("name", ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"])
def test_the_local_rank_is_read_from_every_launcher(fake_gpus, monkeypatch, name):
    launch, seen = fake_gpus
    for other in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(other, raising=False)
    for key, value in {"RANK": "9", "WORLD_SIZE": "16", name: "1"}.items():
        monkeypatch.setenv(key, value)
    launch._join(MeasureOptions(backend="nccl"), launch.launched(os.environ))
    assert seen[0][1] == torch.device("cuda", 1)


def test_a_missing_address_of_the_master_is_told_without_a_traceback(monkeypatch, capsys):
    for key, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert measure.main(["all_reduce", "--backend", "gloo"]) == 2
    assert "MASTER_ADDR" in capsys.readouterr().err


@pytest.mark.parametrize("collective", ALL)
def test_a_call_stays_inside_the_buffer_that_it_is_given(collective):
    from validation.harness.operations import IN_PLACE, Group, prepare, span_of

    count = 6
    for in_place in (False, True):
        if in_place and collective not in IN_PLACE:
            continue
        lengths = []
        for spare in (0, 1000):
            buffer = torch.zeros(span_of(collective, count, 8) + spare)
            call = prepare(
                *(collective, Group(3, 8, torch.device("cpu"), "gloo"), buffer, count),
                **{"root": 3, "redop": "sum", "in_place": in_place},
            )
            views = [view for view, _, _ in (*call.fills, *call.results)] + call.scratch
            lengths.append([view.numel() for view in views])
        # A view beyond the end would be cut.
        assert lengths[0] == lengths[1]


def test_what_the_library_cannot_do_is_a_note_and_other_errors_are_not():
    from validation.harness.operations import Group, Prepared
    from validation.harness.worker import _first_call, _UnavailableError

    group = Group(0, 1, torch.device("cpu"), "gloo")

    def raising(error):
        def call():
            raise error

        return Prepared(call, [], [], [])

    for error in (RuntimeError("Invalid scalar type"), NotImplementedError("no gather")):
        with pytest.raises(_UnavailableError):
            _first_call(raising(error), group)
    with pytest.raises(RuntimeError, match="peer"):
        _first_call(raising(RuntimeError("Connection closed by peer")), group)


def test_the_time_over_ranks_can_be_the_greatest():
    found = measured(ranks=2, min_bytes=1024, max_bytes=1024, over_ranks="max")
    assert all(half.time_s == half.max_s for half in halves(found))


def test_graphs_need_nccl():
    with pytest.raises(MeasureError, match="CUDA graphs need NCCL"):
        measure.run_measure(MeasureOptions(backend="gloo", graph=4))


# ---- GPUs -------------------------------------------------------------------------------------


@pytest.mark.skipif(GPUS < 1, reason="no CUDA device")
def test_one_gpu_gives_its_constants():
    found = measure.run_measure(
        MeasureOptions(ranks=1, backend="nccl", matmul=True, copy=True, max_bytes=1 << 20)
    )
    assert {"matmul", "copy", "add", "host_to_device", "launch"} <= {
        row.kind for row in found.micro
    }
    assert all(half.wrong == 0 for half in halves(found))


@pytest.mark.skipif(GPUS < 2, reason="fewer than two CUDA devices")
def test_nccl_collectives_and_schedules_give_right_data():
    found = measure.run_measure(
        MeasureOptions(collectives=ALL, backend="nccl", max_bytes=1 << 20, factor=16)
    )
    found_ring = measure.run_measure(
        MeasureOptions(algorithms=("ring", "tree"), backend="nccl", max_bytes=1 << 16, factor=16)
    )
    assert all(half.wrong == 0 for half in halves(found) + halves(found_ring))
