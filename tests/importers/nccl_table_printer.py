"""Prints a table as nccl-tests does (src/common.cu, 2.13 to 2.16), for round trips."""

from __future__ import annotations

TITLES = (
    "#                                                              out-of-place"
    "                       in-place          \n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
    "            (us)  (GB/s)  (GB/s)       \n"
)


def time_field(time_us: float) -> str:
    if time_us >= 10000.0:
        return f"{time_us:7.0f}"
    return f"{time_us:7.1f}" if time_us >= 100.0 else f"{time_us:7.2f}"


def row(size, count, dtype, redop, root, halves, factor):
    text = f"{size:12d}  {count:12d}  {dtype:>8s}  {redop:>6s}  {root:6d}"
    for time_us, wrong in halves:
        algbw = size / time_us / 1e3
        check = "    N/A" if wrong is None else f"  {wrong:5g}"
        text += f"  {time_field(time_us)}  {algbw:6.2f}  {algbw * factor:6.2f}{check}"
    return text + "\n"


def header(n_ranks, *, gpus_per_node=8, max_bytes=1 << 34, name="NVIDIA H100 80GB HBM3"):
    lines = [
        f"# nThread 1 nGpus 1 minBytes 8 maxBytes {max_bytes} step: 2(factor) warmup iters: 5 "
        "iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n"
    ]
    for rank in range(n_ranks):
        node, device = divmod(rank, gpus_per_node)
        lines.append(
            f"#  Rank {rank:2d} Group  0 Pid {1000 + rank:6d} on {f'node{node}':>10s} device "
            f"{device:2d} [0x{device + 4:02x}] {name}\n"
        )
    return "".join(lines) + "#\n" + TITLES


FOOTER = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {average:g} \n#\n"
