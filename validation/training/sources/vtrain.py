"""vTrain's ground truth: Megatron-DeepSpeed on A100, one node and many.

VIA-Research/vTrain, data/ground_truth_*.csv and config/validation: fp16, full recomputation
(``use_checkpoint``), 1F1B, gradients reduced after the backward (no bucket), vocabulary 50,257,
4 x 200 Gbit/s a node (``inter_node_bandwidth`` 800).
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.training.strategy import DataParallel, Strategy
from validation.training.record import Excluded, Record, rows_of
from validation.training.sources.common import gpt, padded, precision_of

__all__ = ["records"]


def records() -> Iterator[Record | Excluded]:
    """Generate the records."""
    for row, cells in rows_of("vtrain_ground_truth.csv"):
        tensor, data, pipeline = (int(cells[key]) for key in ("tp", "dp", "pp"))
        batch, micro = int(cells["global_batch"]), int(cells["micro_batch"])
        gpus, seq = int(cells["gpus"]), int(cells["seq"])
        source = f"vtrain-{cells['setup']}"
        passes, rest = divmod(batch, micro * data)
        if rest:
            yield Excluded(
                source=source,
                row=row,
                reason=f"batch {batch} is no multiple of micro-batch {micro} x {data}",
            )
            continue
        strategy = Strategy(
            tensor=tensor,
            data=data,
            pipeline=pipeline,
            micro_batch=micro,
            micro_batches=passes,
            seq=seq,
            recompute="full",
            attention="standard",
            compiled=True,
            dropout=True,
            precision=precision_of("fp16", "deepspeed", "ddp"),
            data_parallel=DataParallel(kind="ddp", overlap_reduce=False, overlap_gather=False),
            framework="deepspeed",
        )
        single = cells["setup"] == "single"
        yield Record(
            source=source,
            row=row,
            label=f"h{cells['hidden']} l{cells['layers']} tp{tensor} dp{data} pp{pipeline} "
            f"b{batch}/{micro}",
            model=gpt(
                int(cells["hidden"]),
                int(cells["layers"]),
                int(cells["heads"]),
                padded(50257, tensor),
                seq,
            ),
            strategy=strategy,
            node="dgx-a100-80gb" if single else "dgx-a100-80gb+4xib200",
            nodes=max(1, gpus // 8),
            gpus_per_node=gpus if gpus < 8 else None,
            measured_s=float(cells["iter_ms"]) / 1e3,
        )
