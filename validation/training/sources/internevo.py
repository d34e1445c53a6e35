"""InternEvo: InternLM-7B on A100, 8 to 1,024 GPUs.

doc/en/train_performance.md: bf16, FlashAttention, ZeRO-1 over 8 ranks of a node (``zero1=8``) or
over all (−1), full recomputation or none, four 100 Gbit/s RoCE ports a node.  Tokens/s per GPU.
InternLM-7B: vocabulary 103,168, feed-forward width 11,008.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.training.strategy import DataParallel, Precision, Strategy
from validation.training.record import Excluded, Record, rows_of
from validation.training.sources.common import llama

__all__ = ["records"]

SOURCE = "internevo"


def records() -> Iterator[Record | Excluded]:
    """Generate the records."""
    for row, cells in rows_of("internevo_7b_tgs.csv"):
        gpus, tensor, seq = int(cells["gpus"]), int(cells["tp"]), int(cells["seq_len"])
        data = gpus // tensor
        zero = int(cells["zero1"])
        shard = data if zero < 0 else min(zero, data)
        strategy = Strategy(
            tensor=tensor,
            data=data,
            micro_batch=int(cells["micro_bsz"]),
            micro_batches=int(cells["micro_num"]),
            seq=seq,
            recompute="full" if cells["activation_ckpt"].upper() == "TRUE" else "none",
            compiled=False,
            precision=Precision(compute="bfloat16", gradient_bytes=2, reduce_bytes=2),
            data_parallel=DataParallel(
                kind="zero1",
                shard=shard,
                overlap_reduce=True,
                overlap_gather=False,
                bucket_bytes=512 * 2**20,
            ),
            framework="deepspeed",
        )
        yield Record(
            source=SOURCE,
            row=row,
            label=f"7b tp{tensor} zero1={zero} {gpus} GPUs "
            f"b{strategy.micro_batch}x{strategy.micro_batches} {strategy.recompute}",
            model=llama(4096, 32, 32, 32, 11008, 103168, seq),
            strategy=strategy,
            node="dgx-a100-80gb+4xroce100",
            nodes=max(1, gpus // 8),
            measured_s=strategy.global_batch * seq / (float(cells["tokens_per_gpu_per_s"]) * gpus),
            attention="flash1",
        )
