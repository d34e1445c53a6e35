"""Say what a text looks like when it is not the wanted log."""

from __future__ import annotations

import re

__all__ = ["Hints"]

_SIGNS: tuple[tuple[str, str], ...] = (
    (r"nvbandwidth Version", "nvbandwidth output"),
    (r"^\s*GPU\d+\s+X\b|\sGPU0\s+.*\bGPU1\b", "the matrix of `nvidia-smi topo -m`"),
    (
        r"(?:RDMA_Write|RDMA_Read|Send) (?:BW|Latency|Bidirectional)",
        "perftest output",
    ),
    (r"Performance of \w+ on \d+ devices", "the DeepSpeed communication benchmark"),
    (r"comm op: \w+ \| time|Comm\. Op\s+Message Size", "a DeepSpeed communication log"),
    (r"\|\s*payload\s*\|", "the table of all_reduce_bench.py"),
    (r"# OSU (?:MPI|NCCL|.*Benchmark)", "OSU micro-benchmark output"),
    (r"Intel\(R\) MPI Benchmarks", "Intel MPI benchmark output"),
    (r"NetworkLoad Tests|NetworkTests? v", "GPCNeT output"),
    (r"\"traceEvents\"|\"schemaVersion\"", "a profiler trace (Chrome trace JSON)"),
    (r"<system\b", "an NCCL topology XML"),
    (r"<graphs\b", "an NCCL graph XML"),
    (r"<platform\b", "a SimGrid platform"),
    (r"<algo\b", "an MSCCL algorithm"),
    (
        r"\"zero_optimization\"|\"train_batch_size\"",
        "a DeepSpeed configuration",
    ),
    (r"\"hidden_size\"|\"n_embd\"|\"architectures\"", "a model's config.json"),
    (r"SwitchName=|BlockName=", "a Slurm topology file"),
    (r"^Switch\s+\d+ \"S-|^vendid=", "ibnetdiscover output"),
    (r"iperf|\[ *ID\] Interval", "iperf output"),
    (r"Traceback \(most recent call last\)", "a Python traceback"),
    (r"srun: error|slurmstepd: error|mpirun noticed that", "the output of a launcher that failed"),
    (r"<html|<!DOCTYPE", "a web page: save the text, not the page"),
    (r"^schema_version:|^collective:", "a scenario of collsim"),
    (r"NCCL (?:INFO|WARN)|via (?:P2P|NET|SHM)/", "NCCL's debug log without a test's table"),
)


class Hints:
    """Watches lines and names the first tool that it recognises."""

    def __init__(self) -> None:
        self._signs = [(re.compile(pattern), name) for pattern, name in _SIGNS]
        self.found: str | None = None
        self._place = len(self._signs)
        self._left = 2000

    @property
    def watching(self) -> bool:
        """False once enough was seen."""
        return self._left > 0 and self._place > 0

    def feed(self, line: str) -> None:
        """Look at one line; only the first two thousand are looked at."""
        if not self.watching:
            return
        self._left -= 1
        for place in range(self._place):
            pattern, name = self._signs[place]
            if pattern.search(line):
                self._place, self.found = place, name
                return
