"""BigScience on Jean Zay: Megatron-DeepSpeed on 8 x A100 80 GB with four 100 Gbit/s ports.

train/tr11-176B-ml/chronicles-prequel.md gives hidden width and layers above each table; the file
here has the rows, whose widths and depths are found again by size and section.  Seconds of the
second iteration.  fp16 with ZeRO-1 until 02-27, then the bf16 optimiser that accumulates in fp32.
The V100 tables are left out: their source calls them right within 40 %, and gives no widths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulator.training.strategy import DataParallel, Precision, Strategy
from validation.training.record import Excluded, Record, rows_of
from validation.training.sources.common import gpt, padded

__all__ = ["records"]

SOURCE = "bigscience"
# Sizes by (section, billions of parameters): hidden width, layers.
_SIZES = {
    ("tile", "187B"): (13824, 80),
    ("48 node", "181B"): (14336, 72),
    ("48 node", "196B"): (13824, 84),
    ("Final", "181B"): (14336, 72),
    ("Final", "182B"): (13312, 84),
    ("NHEADs", "181B"): (14336, 72),
    ("NHEADs", "177B"): (12288, 96),
    ("GBS", "181B"): (14336, 72),
    ("Another", "181B"): (14336, 72),
    ("Batchsize", "182B"): (13824, 78),
    ("Re-do", "182B"): (13824, 78),
    ("Re-do", "195B"): (12288, 106),
    ("Rebalancing", "195B"): (12288, 106),
    ("Rebalancing", "184B"): (12288, 100),
    ("Rebalancing", "178B"): (13312, 82),
    ("Rebalancing", "203B"): (13312, 94),
    ("Rebalancing", "176B"): (14336, 70),
}
_VOCAB = 250_680
_SEQ = 2048
_BLOCKING_NODES = 20
"""From so many nodes on, runs hung but with CUDA_LAUNCH_BLOCKING=1 (its section on hanging)."""


def records() -> Iterator[Record | Excluded]:
    """Generate the records."""
    for row, cells in rows_of("bigscience_experiments.csv"):
        made = _record(row, cells)
        if isinstance(made, str):
            yield Excluded(source=SOURCE, row=row, reason=made)
        else:
            yield made


def _record(row: int, cells: Mapping[str, str]) -> Record | str:
    if not cells["hardware"].startswith("A100"):
        return "V100: right within 40 % as its source says, widths not given"
    try:
        seconds = float(cells["Sec/it"])
    except ValueError:
        return "no time: out of memory, or a rate by an old formula only"
    section = cells["heading"].rpartition("/")[2].strip()
    sizes = next(
        (
            pair
            for (start, size), pair in _SIZES.items()
            if section.startswith(start) and size == cells["Size"]
        ),
        None,
    )
    if sizes is None:
        return "width and depth are not certain"
    hidden, layers = sizes
    tensor, pipeline, nodes = int(cells["TP"]), int(cells["PP"]), int(cells["Nodes"])
    data = nodes * 8 // (tensor * pipeline)
    if cells["DP"] and int(cells["DP"]) != data:
        return f"DP {cells['DP']} x TP x PP are not the GPUs of {nodes} nodes"
    micro, batch = int(cells["MBS"]), int(cells["GBS"])
    if layers % pipeline and (layers + 2) % pipeline:
        return "DeepSpeed splits these layers unevenly in its own way"
    if batch % (micro * data):
        return "the batch does not divide"
    kept = 4 if section.startswith("Rebalancing") else 2
    strategy = Strategy(
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        micro_batch=micro,
        micro_batches=batch // (micro * data),
        seq=_SEQ,
        recompute="full",
        attention="standard",
        compiled=True,
        dropout=False,
        precision=Precision(
            compute="bfloat16" if kept == 4 else "half", gradient_bytes=kept, reduce_bytes=kept
        ),
        data_parallel=DataParallel(
            kind="ddp" if cells["ZS"] == "0" else "zero1",
            overlap_reduce=False,
            overlap_gather=False,
        ),
        framework="deepspeed",
    )
    heads = int(cells["NHEADS"] or 64)
    return Record(
        source=SOURCE,
        row=row,
        label=f"{cells['Size']} h{hidden} l{layers} a{heads} tp{tensor} dp{data} pp{pipeline} "
        f"mb{micro}",
        model=gpt(hidden, layers, heads, padded(_VOCAB, tensor), _SEQ),
        strategy=strategy,
        node="dgx-a100-80gb+4xib100",
        nodes=nodes,
        measured_s=seconds,
        blocking=nodes >= _BLOCKING_NODES,
        assumed="" if cells["NHEADS"] else "64 heads, as the source says of its tables",
    )
