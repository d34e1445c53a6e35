"""PyTorch torchtitan: Llama 3.1 on H100 (96 GB, 500 W) and H200.

benchmarks/*.md: FSDP2 with bf16 gathers and fp32 reductions, torch.compile, float8 products with
float8 gathers, selective activation checkpointing by operator (about half of the products are
computed again, here: full recomputation of half of the blocks).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulator.models import get_model
from simulator.training.strategy import DataParallel, Precision, Strategy
from validation.training.record import Excluded, Record, rows_of

__all__ = ["records"]

SOURCE = "torchtitan"
_EARLY_STOP = 0.75
"""Share of a block's forward that full checkpoints compute again: all but the last product
(torch.utils.checkpoint, ``set_checkpoint_early_stop``)."""
_MODELS = {"8B": "llama-3.1-8b", "70B": "llama-3.1-70b", "405B": "llama-3.1-405b"}


def records() -> Iterator[Record | Excluded]:
    """Generate the records."""
    for row, cells in rows_of("torchtitan.csv"):
        yield _record(row, cells)


def _record(row: int, cells: Mapping[str, str]) -> Record:
    gpus, seq = int(cells["gpus"]), int(cells["seq"])
    tensor, pipeline, context = int(cells["tp"]), int(cells["pp"]), int(cells["cp"])
    data = gpus // (tensor * pipeline * context)
    local, batch = int(cells["local_batch"]), int(cells["global_batch"])
    # A pipeline cuts the local batch into passes of one sequence.
    micro = 1 if pipeline > 1 else local
    passes = batch // (micro * data)
    model = get_model(_MODELS[cells["model"].rpartition("-")[2]])
    interleaved = cells["schedule"].startswith("Interleaved")
    float8 = cells["float8"] not in ("0", "bf16", "")
    whole = cells["ac"] == "full"
    strategy = Strategy(
        tensor=tensor,
        sequence_parallel=tensor > 1,
        overlap_tensor=cells["async_tp"] == "1",
        context=context,
        context_kind="ring",
        pipeline=pipeline,
        virtual=2 if interleaved else 1,
        schedule="interleaved" if interleaved else "1f1b",
        data=data,
        micro_batch=micro,
        micro_batches=passes,
        seq=seq,
        recompute="full",
        recompute_layers=max(1, round((_EARLY_STOP if whole else 0.5) * model.blocks / pipeline)),
        compiled=cells["compile"] == "1",
        precision=Precision(
            compute="f8e4m3" if float8 else "bfloat16",
            parameter_bytes=4,
            gradient_bytes=4,
            reduce_bytes=4,
            gather_bytes=1 if float8 else 2,
            master_bytes=0,
        ),
        data_parallel=DataParallel(
            kind="fsdp",
            reshard_after_forward=pipeline == 1,
            reduce_every_micro_batch=pipeline == 1,
        ),
        framework="torch",
    )
    wide = "H200" in cells["gpu"]
    return Record(
        source=SOURCE,
        row=row,
        label=f"{cells['model']} {cells['table']} {gpus} GPUs s{seq} "
        f"{'float8' if float8 else 'bf16'}",
        model=model,
        strategy=strategy,
        node="hgx-h200" if wide else "hgx-h100-500w",
        nodes=max(1, gpus // 8),
        measured_s=batch * seq / (float(cells["tokens_per_s_per_gpu"]) * gpus),
        attention="flash2",
        assumed="half of the blocks recomputed in full" if not whole else "",
    )
