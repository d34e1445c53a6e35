"""Describe the machine for the record: devices, versions, settings; no names, no addresses."""

from __future__ import annotations

import atexit
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from simulator.importers.log_header import environment_value
from validation.harness.operations import Group

__all__ = ["busy", "crowded", "describe", "device_name", "request_topology"]

_TOPOLOGY_FILE = "NCCL_TOPO_DUMP_FILE"
# Identifiers of single machines in NCCL's topology XML.
_IDENTIFIERS = re.compile(r'\s(?:guid|host_hash|asic|serial)="[^"]*"')
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")


def device_name(device: Any) -> str:
    """Return the name of a GPU, or of the processor with its cores."""
    if device.type == "cuda":
        import torch

        return str(torch.cuda.get_device_name(device))
    return f"{_cpu_name()}, {os.cpu_count()} cores"


def request_topology() -> None:
    """Ask NCCL for a dump of its topology; to be called before the process group begins."""
    if _TOPOLOGY_FILE not in os.environ:
        handle, path = tempfile.mkstemp(suffix=".xml", prefix="collsim-topology-")
        os.close(handle)
        os.environ[_TOPOLOGY_FILE] = path
        atexit.register(Path(path).unlink, missing_ok=True)


def describe(group: Group, nodes: list[int], devices: list[str]) -> dict[str, Any]:
    """Return the environment of this process's node and the devices of all ranks."""
    import torch

    found: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "nodes": nodes,
        "devices": devices,
        "variables": _variables(),
    }
    if group.device.type == "cuda":
        found |= _cuda(group.device, asking=group.rank == 0)
    topology = _topology()
    if topology is not None:
        found["nccl_topology_xml"] = topology
    return found


def busy() -> list[str]:
    """Return a note where other work has the processor's cores; none where it cannot be known."""
    try:
        load = os.getloadavg()[0]
    except OSError:
        return []
    cores = os.cpu_count() or 1
    # What started this process, and the process itself, make a load of one.
    if load < 0.5 * cores + 1.0:
        return []
    return [
        f"the machine was busy before the measurement: a load of {load:.1f} on {cores} cores; "
        "times are too long"
    ]


def crowded(ranks: int) -> list[str]:
    """Return a note where a node has more ranks than cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if cores is None or ranks <= cores:
        return []
    return [
        f"{ranks} ranks share {cores} cores: they wait for the processor, not only for data; "
        "--ranks of at most the cores measures the library"
    ]


def _cuda(device: Any, *, asking: bool) -> dict[str, Any]:
    """Return what torch knows of a GPU, and what nvidia-smi says when it is to be asked."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    found: dict[str, Any] = {
        "gpu": properties.name,
        "gpu_memory_bytes": properties.total_memory,
        "gpu_multiprocessors": properties.multi_processor_count,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }
    if torch.distributed.is_nccl_available():
        nccl: Any = torch.cuda.nccl
        found["nccl"] = ".".join(map(str, nccl.version()))
    found["float32_matmul_precision"] = torch.get_float32_matmul_precision()
    if not asking:
        return found
    for name, arguments in (
        ("driver", ["--query-gpu=driver_version", "--format=csv,noheader"]),
        ("topology_matrix", ["topo", "-m"]),
    ):
        text = _run("nvidia-smi", *arguments)
        if text:
            found[name] = text.splitlines()[0] if name == "driver" else text
    return found


def _run(program: str, *arguments: str) -> str | None:
    path = shutil.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return _ADDRESS.sub("<address>", done.stdout).strip()


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match is not None else platform.machine()


def _variables() -> dict[str, str]:
    """Return the settings that change a collective's speed."""
    prefixes = ("NCCL_", "RCCL_", "GLOO_", "TORCH_NCCL_", "CUDA_DEVICE_MAX", "OMP_NUM_THREADS")
    found = {}
    for name in sorted(os.environ):
        if name.startswith(prefixes) and name != _TOPOLOGY_FILE:
            value = environment_value(name, os.environ[name])
            if value is not None:
                found[name] = value
    return found


def _topology() -> str | None:
    path = os.environ.get(_TOPOLOGY_FILE)
    if path is None:
        return None
    try:
        text = Path(path).read_text()
    except OSError:
        return None
    return _IDENTIFIERS.sub("", text) or None
