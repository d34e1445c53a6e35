"""Which rank a process is that mpirun or srun started, and where the ranks meet."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from simulator.base.errors import Problem
from validation.harness.options import MeasureError

__all__ = ["Launched", "launched"]

_RANKS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    # A batch script has SLURM_PROCID too; SLURM_STEP_… stand for srun alone.
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""),
)
"""Launcher, its variables of the rank, of all ranks, and of those on one node."""
_JOBS = ("SLURM_STEP_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_ID")
_PORTS = (20_000, 30_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A process among others that a launcher started."""

    by: str
    rank: int
    n_ranks: int
    alone: bool
    """All ranks are on one node, as far as the launcher tells."""
    address: Mapping[str, str]
    """MASTER_ADDR and MASTER_PORT, where they are not set already."""


def launched(environ: Mapping[str, str]) -> Launched | None:
    """Return what the launcher's variables say; None for a process that was started alone.

    Raises
    ------
    MeasureError
        Several nodes, and nothing tells where rank 0 is.

    Examples
    --------
    >>> launched({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4",
    ...     "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}).rank
    1
    >>> launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None
    True
    """
    for by, rank, size, local in _RANKS:
        if environ.get(rank, "").isdecimal() and environ.get(size, "").isdecimal():
            n_ranks = int(environ[size])
            if n_ranks == 1 and by != "torchrun":
                return None
            alone = environ.get(local) == environ[size] or (
                by == "srun" and environ.get("SLURM_STEP_NUM_NODES") == "1"
            )
            return Launched(
                by=by,
                rank=int(environ[rank]),
                n_ranks=n_ranks,
                alone=alone,
                address=_address(environ, by, alone),
            )
    return None


def _address(environ: Mapping[str, str], by: str, alone: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    if by == "torchrun":  # which sets both
        return found
    if "MASTER_ADDR" not in environ:
        host = "127.0.0.1" if alone else _first_host(environ.get("SLURM_STEP_NODELIST", ""))
        if not host:
            raise MeasureError(
                Problem(
                    key="MASTER_ADDR",
                    message=f"{by} does not tell on which of several nodes rank 0 is",
                    allowed="its host name or address, the same for all ranks",
                )
            )
        found["MASTER_ADDR"] = host
    if "MASTER_PORT" not in environ:
        # The same for all ranks of a job, another for its neighbour.
        job = " ".join(environ.get(name, "") for name in _JOBS)
        number = int.from_bytes(hashlib.sha256(job.encode()).digest()[:4], "big")
        found["MASTER_PORT"] = str(_PORTS[0] + number % (_PORTS[1] - _PORTS[0]))
    return found


def _first_host(nodes: str) -> str:
    """Return the first host of Slurm's list of nodes.

    Examples
    --------
    >>> _first_host("gpu[03-05,9],login"), _first_host("a1,a2"), _first_host("")
    ('gpu03', 'a1', '')
    """
    match = re.match(r"([^\[,]*)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)", nodes)
    return "" if match is None else f"{match[1]}{match[2] or ''}{match[3]}"
