"""Tables of perftest and nvbandwidth, and which faults they name or rule out."""

from __future__ import annotations

import pytest

from simulator.importers import ForeignFileError
from simulator.importers.link_rates import read
from simulator.scenario.nodes import node_template
from simulator.scenario.resolve import from_words
from simulator.verdict.links import with_links
from simulator.verdict.setup import SetUp

BANDWIDTH = """
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : mlx5_0
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             {0:.2f}           {0:.2f}              0.37
 8388608    5000             {1:.2f}           {1:.2f}              0.003
---------------------------------------------------------------------------------------
"""
LATENCY = """
                    RDMA_Write Latency Test
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]
 2       1000          1.80           8.22         {:.2f}             1.86
 4       1000          1.81           3.10         9.99               1.87
"""
NVBANDWIDTH = """nvbandwidth Version: v0.6
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     26.10     {:.2f}

SUM host_to_device_memcpy_ce 50.00

Waived:
Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1         2
 0       N/A    272.11    {:.2f}
 1    271.90       N/A    272.50

SUM device_to_device_memcpy_read_ce 1000.0
"""


def template(preset: str):
    words = {"node": preset, "collective.op": "all_reduce", "collective.size": "1M"}
    return node_template(from_words(words).variants[0].node_groups[0].node)


def test_perftest_gives_the_best_size_in_bytes_per_second() -> None:
    (rate,) = read(BANDWIDTH.format(11000.0, 23000.0))
    assert (rate.kind, rate.test) == ("nic", "RDMA_Write BW Test")
    # MB/sec of perftest are 2^20 bytes.
    assert rate.best == 23000.0 * (1 << 20)


def test_perftest_gives_the_typical_latency_of_the_smallest_message() -> None:
    (rate,) = read(LATENCY.format(1.83))
    assert (rate.kind, rate.best) == ("latency", pytest.approx(1.83e-6))


def test_nvbandwidth_gives_the_worst_and_the_best_pair() -> None:
    host, gpu = read(NVBANDWIDTH.format(24.9, 130.0))
    assert (host.kind, host.best, host.worst) == ("host", 26.1e9, 24.9e9)
    assert (gpu.kind, gpu.best, gpu.worst) == ("gpu", 272.5e9, 130.0e9)


def test_nvbandwidth_json_gives_the_same() -> None:
    text = (
        '{"nvbandwidth": {"testcases": [{"name": "host_to_device_memcpy_ce", "status": "Passed",'
        '"bandwidth_matrix": [["26.10", "24.90"]]}, {"name": "x", "status": "Waived"}]}}'
    )
    (rate,) = read(text + "\n")
    assert (rate.best, rate.worst) == (26.1e9, 24.9e9)


@pytest.mark.parametrize("text", ["hello\n", "{}\n", '{"nvbandwidth": 3}\n', "1 2 3.0 4.0 5.0\n"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ForeignFileError, match="no table"):
        read(text)


def test_a_slow_port_names_faults_and_a_good_one_rules_only_its_own_out() -> None:
    node = template("dgx-a100-80gb")  # ports of 25 GB/s
    base = SetUp(words={"node": "dgx-a100-80gb", "nodes": "2"})
    slow = with_links(base, node, read(BANDWIDTH.format(5000.0, 11000.0)))
    assert {"nic_shared", "slow_nic"} <= {*slow.named}
    assert "46 %" in slow.named["nic_shared"]  # 11000 MiB/s are 11.5 of 25 GB/s
    good = with_links(base, node, read(BANDWIDTH.format(11000.0, 23000.0)))
    assert good.named == {}
    assert good.excluded == {"nic_shared"}


def test_an_uneven_matrix_names_a_slow_gpu_and_full_slots_rule_slow_ones_out() -> None:
    node = template("dgx-a100-80gb")  # slots of PCIe 4.0 × 16: 31.5 GB/s
    made = with_links(SetUp(), node, read(NVBANDWIDTH.format(25.6, 130.0)))
    assert {*made.named} == {"slow_gpu"}
    assert "pcie_half_width" in made.excluded
    late = with_links(SetUp(), node, read(LATENCY.format(17.0)))
    assert {*late.named} == {"network_latency"}
