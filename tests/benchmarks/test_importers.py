"""Speed of reading logs: bytes per second of NCCL's chatter, rows per second of tables."""

from pathlib import Path

import pytest

from simulator.importers.nccl_tests import read

DATA = Path(__file__).parents[1] / "importers" / "data"
INFO = (
    "[1,0]<stdout>:host-a:25:25 [0] NCCL INFO Channel 00/0 : 1[21000] -> 0[1000] via "
    "P2P/direct pointer\n"
)
ROW = (
    "   536870912     134217728   float     sum   4200.3  127.82  223.68    N/A   4184.0  128.32"
    "  224.55    N/A\n"
)


@pytest.mark.parametrize(("line", "count"), [(INFO, 50_000), (ROW, 5_000)], ids=["info", "rows"])
def test_read_log(benchmark, line, count):
    text = (DATA / "superbench_nccl_allreduce.log").read_text() + line * count
    log = benchmark.pedantic(read, args=(text,), rounds=3)
    assert log.tables
