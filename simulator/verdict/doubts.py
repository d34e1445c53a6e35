"""What a log's header says against a set-up: other hosts, another model of GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence

from simulator.importers import MeasuredTable

__all__ = [
    "gpu_doubt",
    "host_contradiction",
    "hosts_known",
    "library_doubt",
    "model_of",
    "shared_gpu",
]

_BRANDS = re.compile(r"\b(nvidia|geforce|tesla|quadro|amd|instinct|rtx|gtx|pro)\b")

_INSTINCT = re.compile(r"\bMI\d{2,3}\w?\b")


def model_of(name: str) -> str:
    """Return the model number in the name of a GPU, empty where there is none.

    Memory and form are left out: links differ by them, but names in logs often do not tell.

    Examples
    --------
    >>> model_of("NVIDIA H100 80GB HBM3"), model_of("h100-sxm"), model_of("rtx4090")
    ('h100', 'h100', '4090')
    >>> model_of("NVIDIA GeForce RTX 4090"), model_of("AMD EPYC 7763 64-Core Processor")
    ('4090', '')
    """
    plain = re.sub(r"[^a-z0-9]+", " ", name.lower())
    words = re.sub(r"\b([rg]tx)(pro)?(?=[a-z]?\d)", "", _BRANDS.sub(" ", plain)).split()
    found = re.match(r"[a-z]{0,2}\d{2,4}", words[0]) if words else None
    return found.group() if found else ""


def gpu_doubt(table: MeasuredTable, models: Sequence[str]) -> str:
    """Return in words that the log names other GPUs than the set-up; empty where it does not.

    Parameters
    ----------
    table
        Of the log.
    models
        Names of the set-up's GPUs.
    """
    known = {model_of(name): name for name in models if model_of(name)}
    other = [name for name in table.gpus if model_of(name) and model_of(name) not in known]
    if not known or not other:
        return ""
    return (
        f"THE LOG NAMES ANOTHER GPU: {other[0]!r}, where the set-up (node) has "
        f"{' and '.join(known.values())}; the verdict is on the set-up that was given"
    )


def library_doubt(table: MeasuredTable, profile: str) -> str:
    """Return in words that the log is of another vendor's library than the costs; or nothing."""
    theirs = {"nccl": "rccl", "rccl": "nccl"}.get(profile)
    told = table.library or ("rccl" if any(_INSTINCT.search(name) for name in table.gpus) else "")
    if theirs is None or told != theirs:
        return ""
    return (
        f"THE LOG IS OF {theirs.upper()}, the prediction of {profile.upper()}: --costs {theirs}, "
        "or the node that was measured"
    )


def shared_gpu(table: MeasuredTable) -> str:
    """Return in words that ranks share a GPU: one host, one bus id; empty where none do."""
    seen: dict[tuple[str, int, str], int] = {}
    alone = {device.host for device in table.devices}
    for device in table.devices:
        place = (device.host, device.device, device.bus_id)
        first = seen.setdefault(place, device.rank)
        if first != device.rank and table.n_nodes == len(alone) and device.bus_id:
            return (
                f"ranks {first} and {device.rank} share one GPU, {device.bus_id} of one host: NCCL "
                "refuses that unless it is told to allow it, and collsim gives each rank its own"
            )
    return ""


def hosts_known(table: MeasuredTable) -> bool:
    """Tell whether the log says for certain on how many hosts its ranks lie."""
    return table.n_nodes is not None and len(table.devices) in (0, table.n_ranks)


def host_contradiction(table: MeasuredTable, nodes: int) -> str:
    """Return in words that the log's ranks lie on another number of hosts; empty where not."""
    if table.n_nodes is None or table.n_nodes == nodes:
        return ""
    hosts = f"{table.n_nodes} host" + ("s" if table.n_nodes > 1 else "")
    by = "device lines" if table.devices else "messages of the library"
    sure = "say" if hosts_known(table) else "let guess"
    return f"the log's {by} {sure} {table.n_ranks} ranks on {hosts}, the set-up has nodes: {nodes}"
