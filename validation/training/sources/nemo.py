"""NVIDIA NeMo 24.07 on DGX H100 in FP8, and Llama with long sequences on B200 and H100.

docs/source/performance/*.md: Transformer Engine's FP8 products, tensor-parallel exchanges cut in
pieces beside products, distributed optimiser with overlapped communication.  Tokens/s per GPU;
fine-tuning in full is a training step of packed sequences, LoRA is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulator.models import from_dims, get_model
from simulator.models.model import Model
from simulator.training.strategy import DataParallel, Strategy
from validation.training.record import Excluded, Record, rows_of
from validation.training.sources.common import gpt, precision_of

__all__ = ["records"]


def records() -> Iterator[Record | Excluded]:
    """Generate the records."""
    for row, cells in rows_of("nemo_2407_h100_fp8.csv"):
        if cells["Task"] == "LoRA":
            yield Excluded(
                source="nemo",
                row=row,
                reason="LoRA: frozen weights have no gradients, which is not modelled",
            )
            continue
        yield _pretraining(row, cells)
    for row, cells in rows_of("nemo_long_sequence.csv"):
        yield from _long(row, cells)


def _model(name: str, seq: int) -> Model:
    if name.startswith("GPT3"):
        hidden, layers, heads = {
            "5B": (4096, 24, 32),
            "20B": (6144, 44, 48),
            "175B": (12288, 96, 96),
        }[name.rpartition("-")[2]]
        return gpt(hidden, layers, heads, 51200, seq)
    if name.startswith("Nemotron-22B"):
        return from_dims(
            name="nemotron-22b",
            source="NeMo recipes",
            hidden=6144,
            layers=40,
            heads=48,
            vocab=256000,
            seq=seq,
            activation="squared_relu",
            bias=False,
            position="rope",
            tied=False,
        )
    return get_model(name.lower().replace("llama2", "llama-2").replace("llama3", "llama-3"))


def _pretraining(row: int, cells: Mapping[str, str]) -> Record:
    gpus = int(cells["#-GPUs"])
    seq = int(cells["Sequence Length"] or cells["Packed Sequence Length"])
    tensor, pipeline = int(cells["TP"]), int(cells["PP"])
    context = int(cells["CP"] or 1)
    data = gpus // (tensor * pipeline * context)
    micro, batch = int(cells["MBS"]), int(cells["GBS"])
    model = _model(cells["Model"], seq)
    # Fine-tuning rows have no VP; pre-training rows of the same models have chunks of one block.
    virtual = int(cells["VP"] or (model.blocks // pipeline if pipeline > 1 else 1))
    if virtual > 1 and model.blocks % (pipeline * virtual):
        # Printed as blocks of a chunk in some rows.
        virtual = model.blocks // pipeline // virtual or 1
    strategy = Strategy(
        tensor=tensor,
        sequence_parallel=tensor > 1,
        overlap_tensor=tensor > 1,
        context=context,
        pipeline=pipeline,
        virtual=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        data=data,
        micro_batch=micro,
        micro_batches=batch // (micro * data),
        seq=seq,
        compiled=True,
        precision=precision_of("fp8", "megatron", "zero1", gradient_bytes=4, reduce_bytes=2),
        data_parallel=DataParallel(kind="zero1"),
    )
    return Record(
        source="nemo",
        row=row,
        label=f"{cells['Model']} {gpus} GPUs tp{tensor} pp{pipeline} cp{context} v{virtual}",
        model=model,
        strategy=strategy,
        node="dgx-h100",
        nodes=max(1, gpus // 8),
        measured_s=batch * seq / (float(cells["Tokens / sec / GPU"]) * gpus),
        assumed="packed sequences without gaps, chunks of one block" if cells["Task"] else "",
    )


def _long(row: int, cells: Mapping[str, str]) -> Iterator[Record | Excluded]:
    """Generate one record: rates with context parallelism count causal attention in full."""
    yield Excluded(
        source="nemo-long",
        row=row,
        reason="rates only, their count of attention FLOPs and the batch per rank are not given",
    )
    del cells
