"""Hosts without GPUs: names, processes, cores."""

import pytest

from simulator.base.errors import TopologyError
from topologies import hardware
from topologies.hardware_host import CPU_GENERATION, split_host


def test_names_say_processes_and_cores() -> None:
    assert split_host("cpu-4") == (4, 4)
    assert split_host("CPU 8 2c") == (8, 2)
    assert split_host("cpu-box") is None
    assert hardware.canonical("cpu_4_4cores") == "cpu-4"
    assert hardware.load("cpu-8-2c").name == "cpu-8-2cores"
    with pytest.raises(TopologyError, match="0 processes"):
        hardware.load("cpu-0")


def test_what_all_processes_move_is_limited_by_cores() -> None:
    two, shared = hardware.load("cpu-2"), hardware.load("cpu-8-2cores")
    assert (two.cores, shared.cores) == (2, 2)
    assert two.cpu_memory_Bps == shared.cpu_memory_Bps
    assert hardware.load("cpu-8").cpu_memory_Bps == 4 * two.cpu_memory_Bps
    processes = [link for link in shared.links if "cpu0" in (link.a, link.b) and "gpu" in link.a]
    assert len(processes) == 8
    assert shared.gpu.generation == CPU_GENERATION
    assert all(link.source for link in shared.links)


def test_changes_of_names_fit_them_too() -> None:
    assert hardware.load("cpu-2+1xeth25").nic_rate_Bps == 25e9 / 8
    assert sum(v.kind == "gpu" for v in hardware.load("cpu-4+2gpus").vertices) == 2
