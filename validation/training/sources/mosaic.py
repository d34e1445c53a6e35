"""MosaicML llm-foundry: MPT on A100 and H100 with FSDP.

scripts/train/benchmarking/README.md.  Throughput in tokens/s of a whole step with gradient
accumulation.  Attention is the Triton kernel of FlashAttention 1 (``attn_impl: triton`` in
submit_benchmarks.py), cross entropy is fused, layer norms are in low precision.  ``mixed_precision:
PURE`` reduces gradients in bf16; DEFAULT keeps fp32 shards, gathers them in bf16 and reduces in
bf16 too (composer/trainer/mosaic_fsdp_utils.py).  The runs with DEFAULT are of 2023-24 and newer
PyTorch, whose non-reentrant checkpoints stop once all is there that the backward needs
(torch.utils.checkpoint, ``set_checkpoint_early_stop``).  A100 nodes have 1,600 Gbit/s; the network
of the H100 nodes is not named and is taken as 3,200 Gbit/s.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.models import from_dims
from simulator.training.strategy import DataParallel, Precision, Strategy
from validation.training.record import Excluded, Record, rows_of

__all__ = ["records"]

SOURCE = "mosaic"
_RECOMPUTED = 0.7
"""Early stop: the last product of a block, a third of the forward's, is not computed again."""
_NODES = {"a100_40gb": "dgx-a100-40gb", "a100_80gb": "dgx-a100-80gb", "h100_80gb": "dgx-h100"}


def records() -> Iterator[Record | Excluded]:
    """Generate the records."""
    for row, cells in rows_of("mosaic_llm_foundry.csv"):
        gpus, seq = int(cells["n_gpus"]), int(cells["seqlen_t"])
        model = from_dims(
            name=f"mpt-{cells['model']}",
            source="llm-foundry, scripts/train/yamls/pretrain",
            hidden=int(cells["d_model"]),
            layers=int(cells["n_layers"]),
            heads=int(cells["n_heads"]),
            vocab=int(cells["vocab_size"]),
            seq=seq,
            bias=False,
            norm_bias=False,
        )
        pure = cells["mp_mode"] == "PURE"
        eight = cells["precision"] == "amp_fp8"
        precision = Precision(
            compute="f8e4m3" if eight else "bfloat16",
            parameter_bytes=2 if pure else 4,
            gradient_bytes=2 if pure else 4,
            reduce_bytes=2,
            gather_bytes=2,
            master_bytes=0,
            moment_bytes=4 if pure else 8,
        )
        full = cells["sharding_strategy"] == "FULL_SHARD"
        again = cells["activation_checkpointing"] == "True"
        strategy = Strategy(
            data=gpus,
            micro_batch=int(cells["microbatchsize"]),
            micro_batches=int(cells["gradaccum"]),
            seq=seq,
            recompute="full" if again else "none",
            recompute_layers=round(_RECOMPUTED * model.blocks) if again and not pure else None,
            compiled=True,
            precision=precision,
            data_parallel=DataParallel(
                kind="fsdp",
                reshard_after_forward=full,
                reduce_every_micro_batch=True,
            ),
            framework="torch",
        )
        tokens = strategy.global_batch * seq
        yield Record(
            source=SOURCE,
            row=row,
            label=f"{cells['model']} s{seq} {gpus}x{cells['gpu']} {cells['precision']}",
            model=model,
            strategy=strategy,
            node=_NODES[cells["gpu"]],
            nodes=max(1, gpus // 8),
            measured_s=tokens / (float(cells["throughput_t_per_s_per_gpu"]) * gpus),
            attention="flash1",
            assumed="3,200 Gbit/s a node" if cells["gpu"] == "h100_80gb" else "",
        )
