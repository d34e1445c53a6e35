"""The all_reduce look-up tables of vTrain, as set-ups."""

from __future__ import annotations

import csv
import functools
import gzip
import io
from importlib import resources

import numpy as np

from validation.records import Hardware, PublishedTable, SetUp, Software

__all__ = ["vtrain"]

_VTRAIN_NODES = {
    "A100": "NVLink3 + NVSwitch",
    "V100": "NVLink2 hybrid cube mesh",
}


@functools.cache
def vtrain() -> tuple[SetUp, ...]:
    """Return the all_reduce look-up tables of vTrain: A100 and V100 nodes, 2 to 8 GPUs.

    Each table has 1,024 sizes from 1 MiB to 1 GiB in steps of 1 MiB.
    """
    folder = resources.files("validation") / "measurements" / "collectives"
    packed = (folder / "vtrain_allreduce_lut.csv.gz").read_bytes()
    lines = csv.DictReader(io.StringIO(gzip.decompress(packed).decode()))
    groups: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for line in lines:
        row = (
            float(line["size_bytes"]),
            *(float(line[f"{half}_time_us"]) for half in ("oop", "ip")),
            *(float(line[f"{half}_busbw_gbs"]) for half in ("oop", "ip")),
        )
        groups.setdefault((line["gpu"], int(line["nranks"])), []).append(row)
    return tuple(
        _vtrain_set_up(gpu, {n: rows for (name, n), rows in groups.items() if name == gpu})
        for gpu in sorted(_VTRAIN_NODES)
    )


def _vtrain_set_up(gpu: str, by_ranks: dict[int, list[tuple[float, ...]]]) -> SetUp:
    return SetUp(
        slug=f"vtrain-{gpu.lower()}",
        source=f"github:VIA-Research/vTrain trace/{gpu.lower()}/AR_GPU*_1M_1024M_LUT",
        date="2024",
        hardware=Hardware(
            gpu=gpu,
            gpus_per_node=8,
            nodes=1,
            n_ranks=None,
            intra_node=_VTRAIN_NODES[gpu],
            inter_node="none",
            nics_per_node=None,
            gdr="unknown",
            cpu_numa="unknown",
        ),
        software=Software(nccl="unknown", cuda="unknown", environment={}, nccl_log=()),
        health="healthy",
        health_cause="",
        notes="the first n GPUs of one node",
        tables=tuple(_vtrain_table(n, by_ranks[n]) for n in sorted(by_ranks)),
    )


def _vtrain_table(n_ranks: int, rows: list[tuple[float, ...]]) -> PublishedTable:
    columns = np.array(rows)
    size, time_us, in_time_us, busbw, in_busbw = columns.T
    factor = 2.0 * (n_ranks - 1) / n_ranks
    return PublishedTable(
        collective="all_reduce",
        dtype="float",
        redop="sum",
        root=None,
        n_ranks=n_ranks,
        n_nodes=1,
        variant="",
        run="",
        hardware_note="",
        algorithm=None,
        protocol=None,
        environment={},
        old_convention=False,
        size_bytes=size.astype(np.int64),
        time_s=time_us / 1e6,
        printed_algbw_Bps=busbw / factor * 1e9,
        printed_busbw_Bps=busbw * 1e9,
        in_place_time_s=in_time_us / 1e6,
        in_place_printed_algbw_Bps=in_busbw / factor * 1e9,
        in_place_printed_busbw_Bps=in_busbw * 1e9,
    )
