"""Start the ranks: those of torchrun, mpirun or srun, or processes of our own here."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from simulator.base.errors import Problem
from validation.harness import environment
from validation.harness.launcher import Launched, launched
from validation.harness.operations import Group
from validation.harness.options import MeasureError, Measurement, MeasureOptions, check_root

__all__ = ["run"]


def run(options: MeasureOptions) -> tuple[Measurement, bool]:
    """Measure, and return (the measurement, whether this process should report it).

    Raises
    ------
    MeasureError
        torch is missing, too few GPUs, or a rank failed; the message has the rank's own words.
    """
    try:
        import torch
    except ImportError:
        raise MeasureError(
            Problem(message="torch is not installed", allowed="pip install 'collsim[measure]'")
        ) from None
    if not torch.distributed.is_available():
        raise MeasureError("this torch was built without torch.distributed")
    place = launched(os.environ)
    if place is not None:
        return _join(options, place)
    return _spawn(options), True


def _join(options: MeasureOptions, place: Launched) -> tuple[Measurement, bool]:
    """Be the rank that torchrun, mpirun or srun made of this process."""
    rank, n_ranks = place.rank, place.n_ranks
    if options.ranks not in (None, n_ranks):
        raise MeasureError(
            Problem(
                key="ranks",
                message=f"{options.ranks} ranks, but {place.by} started {n_ranks}",
                allowed="the launcher's number, or no --ranks",
            )
        )
    os.environ.update(place.address)
    if place.alone and place.by != "torchrun":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    local = _local("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
    try:
        measurement = _rank(options, rank, n_ranks, rank if local is None else local, "env://")
    except (RuntimeError, ValueError, OSError) as error:
        # ValueError: MASTER_ADDR or MASTER_PORT is missing.
        raise MeasureError(f"rank {rank} failed: {type(error).__name__}: {error}") from error
    return measurement, rank == 0


def _local(*names: str) -> int | None:
    """Return the first of some variables that is a number: launchers name them differently."""
    for name in names:
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return None


def _spawn(options: MeasureOptions) -> Measurement:
    import torch

    # Its names are not declared as exported, hence the import by name.
    mp: Any = importlib.import_module("torch.multiprocessing")

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    n_ranks = options.ranks
    if n_ranks is None:
        n_ranks = gpus if gpus and options.backend != "gloo" else 2
    if options.backend == "nccl" and n_ranks > gpus:
        raise MeasureError(
            Problem(message=f"{n_ranks} ranks with NCCL, but {gpus} GPUs", key="ranks")
        )
    check_root(options, n_ranks)
    with tempfile.TemporaryDirectory(prefix="collsim-measure-") as folder:
        try:
            mp.spawn(_entry, args=(options, n_ranks, folder), nprocs=n_ranks)
        except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
            raise MeasureError(_reason(folder, error)) from None
        document = json.loads((Path(folder) / "result.json").read_text())
    return Measurement.from_dict(document)


def _reason(folder: str, error: Exception) -> Problem:
    """Return the words of the rank that failed first: the others only lost their partner."""
    failures = sorted(Path(folder).glob("failed-*"), key=lambda path: path.stat().st_mtime_ns)
    if not failures:
        return Problem(message=f"a rank ended: {str(error).strip().splitlines()[-1]}")
    rank = failures[0].name.partition("-")[2]
    return Problem(message=f"rank {rank} failed: {failures[0].read_text().strip()}")


def _entry(rank: int, options: MeasureOptions, n_ranks: int, folder: str) -> None:
    """Run one process of `_spawn`."""
    import torch

    # The ranks share this machine's cores.
    torch.set_num_threads(max((os.cpu_count() or 1) // n_ranks, 1))
    # All ranks are here: the loopback device always works, a host name may not resolve.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        measurement = _rank(options, rank, n_ranks, rank, f"file://{folder}/rendezvous")
    except Exception as error:
        words = f"{type(error).__name__}: {error}" if not isinstance(error, MeasureError) else error
        (Path(folder) / f"failed-{rank}").write_text(str(words))
        raise
    if rank == 0:
        (Path(folder) / "result.json").write_text(json.dumps(measurement.to_dict()))


def _rank(options: MeasureOptions, rank: int, n_ranks: int, local: int, method: str) -> Measurement:
    import torch
    import torch.distributed as dist

    from validation.harness.worker import measure_in_group

    check_root(options, n_ranks)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    backend = options.backend
    if backend == "auto":
        # NCCL refuses two ranks on one GPU.
        per_node = _local("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
        per_node = n_ranks if per_node is None else per_node
        backend = "nccl" if gpus >= per_node and dist.is_nccl_available() else "gloo"
    arguments: dict[str, Any] = {}
    if options.graph and backend != "nccl":
        raise MeasureError(Problem(key="graph", message=f"CUDA graphs need NCCL, not {backend}"))
    if backend == "nccl":
        if not dist.is_nccl_available():
            raise MeasureError("this torch was built without NCCL")
        if local >= gpus:
            raise MeasureError(f"local rank {local} has no GPU: {gpus} here")
        device = torch.device("cuda", local)
        # Before the group begins: NCCL and torch's helper tensors take the current device.
        torch.cuda.set_device(device)
        environment.request_topology()
        arguments["device_id"] = device
    else:
        device = torch.device("cpu")
    dist.init_process_group(
        backend,
        init_method=method,
        rank=rank,
        world_size=n_ranks,
        timeout=timedelta(seconds=options.timeout_s),
        **arguments,
    )
    measurement = measure_in_group(options, Group(rank, n_ranks, device, backend))
    # Not after an error: with NCCL it would wait for ranks that still are in a call.
    dist.destroy_process_group()
    return measurement
