"""Single runs of papers and reports: Megatron-LM, MT-NLG, Llama 3, BLOOM, DeepSpeed on Azure.

Rates of SC21, MT-NLG and DeepSpeed count recomputation (equation 3 of arXiv:2104.04473); those of
Megatron-Core count the model's own FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from simulator.models import from_dims, get_model
from simulator.training.strategy import DataParallel, Strategy
from validation.training.record import Excluded, Record, rows_of
from validation.training.sources.common import gpt, megatron_seconds, padded, precision_of

__all__ = ["records"]

_WHOLE_RUN = "a rate of a whole run with its restarts, from GPU hours; layout not given"
_SLUGS = {
    "Megatron-LM SC21": "sc21",
    "Megatron-LM 2020": "megatron-2020",
    "Megatron-Core": "megatron-core",
    "Korthikanti": "korthikanti",
    "MT-NLG": "mt-nlg",
    "Llama 3 herd": "llama3",
    "BLOOM": "bloom",
    "DeepSpeed on Azure": "deepspeed-azure",
}
_SKIP = {
    "LLaMA 1": _WHOLE_RUN,
    "Llama 2 Table 2": _WHOLE_RUN,
    "Llama 3.1 model card": _WHOLE_RUN,
    "Pythia Table 5": _WHOLE_RUN,
    "SmolLM3 blog": _WHOLE_RUN,
    "Megatron-LM SC21 Table 2": "not checked against the paper, and sizes are missing",
}


def records() -> Iterator[Record | Excluded]:
    """Generate the records."""
    for row, cells in rows_of("published_runs.csv"):
        paper = cells["paper"]
        source = _slug(paper)
        rules = (rule for start, rule in _RULES.items() if paper.startswith(start))
        made = _SKIP.get(paper) or next(rules, _unknown)(row, cells, source)
        if isinstance(made, str):
            yield Excluded(source=source, row=row, reason=made)
        else:
            yield made


def _slug(paper: str) -> str:
    return next((name for start, name in _SLUGS.items() if paper.startswith(start)), "reports")


def _gpt(cells: Mapping[str, str], *, vocab: int | None = None) -> object:
    return gpt(
        int(cells["hidden"]),
        int(cells["layers"]),
        int(cells["heads"]),
        vocab or int(cells["vocab"]),
        int(cells["seq"]),
    )


def _dense(cells: Mapping[str, str], **more: object) -> Strategy:
    """Return Megatron-LM's strategy with the sizes of a row."""
    tensor, pipeline = int(cells["tp"] or 1), int(cells["pp"] or 1)
    data = int(cells["gpus"]) // (tensor * pipeline)
    micro = int(more.pop("micro_batch", None) or cells["micro_batch"] or 1)  # type: ignore[call-overload]
    virtual = int(cells["vp"] or 1)
    given: dict[str, object] = {
        "tensor": tensor,
        "pipeline": pipeline,
        "virtual": virtual,
        "schedule": "interleaved" if virtual > 1 else "1f1b",
        "data": data,
        "micro_batch": micro,
        "micro_batches": int(cells["global_batch"]) // (micro * data),
        "seq": int(cells["seq"]),
        "attention": "standard",
        "compiled": True,
        "dropout": True,
        "precision": precision_of("fp16", "megatron", "ddp"),
        "data_parallel": DataParallel(kind="ddp", overlap_reduce=False, overlap_gather=False),
        "framework": "megatron",
    }
    return Strategy(**{**given, **more})  # type: ignore[arg-type]


def _record(
    row: int,
    cells: Mapping[str, str],
    source: str,
    strategy: Strategy,
    node: str,
    measured_s: float,
    **more: object,
) -> Record:
    gpus = int(cells["gpus"])
    model = more.pop("model", None) or _gpt(cells)
    return Record(
        source=source,
        row=row,
        label=f"{cells['model']} {gpus} GPUs",
        model=model,  # type: ignore[arg-type]
        strategy=strategy,
        node=node,
        nodes=max(1, gpus // 8),
        gpus_per_node=gpus if gpus < 8 else None,
        measured_s=measured_s,
        **more,  # type: ignore[arg-type]
    )


def _rate_s(cells: Mapping[str, str], *, recomputed: bool, vocab: int | None = None) -> float:
    return megatron_seconds(
        float(cells["tflops_per_gpu"]),
        int(cells["gpus"]),
        batch=int(cells["global_batch"]),
        seq=int(cells["seq"]),
        layers=int(cells["layers"]),
        hidden=int(cells["hidden"]),
        vocab=vocab or int(cells["vocab"]),
        recomputed=recomputed,
    )


def _sc21(row: int, cells: Mapping[str, str], source: str) -> Record | str:
    strategy = _dense(cells, recompute="full")
    return _record(row, cells, source, strategy, "dgx-a100-80gb", _rate_s(cells, recomputed=True))


def _megatron_2020(row: int, cells: Mapping[str, str], source: str) -> Record | str:
    node = "dgx-2" if "V100" in cells["gpu"] else "dgx-a100-40gb"
    tensor = int(cells["tp"] or 1)
    data = int(cells["dp"] or 1)
    each = int(cells["global_batch"]) // data
    vocab = padded(50257, tensor)
    strategy = _dense(cells, recompute="full", micro_batch=each)
    return _record(
        row,
        cells,
        source,
        strategy,
        node,
        float(cells["step_time_s"]),
        model=_gpt(cells, vocab=vocab),
        assumed="sequences of 1,024, one micro-batch, full recomputation",
    )


def _megatron_core(row: int, cells: Mapping[str, str], source: str) -> Record | str:
    gpus = int(cells["gpus"])
    tensor, pipeline = int(cells["tp"]), int(cells["pp"])
    strategy = _dense(
        cells,
        micro_batch=1,
        sequence_parallel=tensor > 1,
        overlap_tensor=tensor > 1,
        virtual=_largest_virtual(int(cells["layers"]), pipeline),
        schedule="interleaved" if pipeline > 1 else "1f1b",
        attention="flash",
        dropout=False,
        precision=precision_of("bf16", "megatron", "zero1", gradient_bytes=4, reduce_bytes=2),
        data_parallel=DataParallel(kind="zero1"),
    )
    seconds = megatron_seconds(
        float(cells["tflops_per_gpu"]),
        gpus,
        batch=int(cells["global_batch"]),
        seq=int(cells["seq"]),
        layers=int(cells["layers"]),
        hidden=int(cells["hidden"]),
        vocab=int(cells["vocab"]),
        recomputed=False,
    )
    return _record(
        row,
        cells,
        source,
        strategy,
        "dgx-h100",
        seconds,
        assumed="micro-batch 1, chunks of one to three blocks, gradients reduced in bf16",
    )


def _largest_virtual(layers: int, pipeline: int) -> int:
    """Return the chunks of an interleaved schedule with as few blocks a chunk as divide."""
    if pipeline == 1:
        return 1
    each = layers // pipeline
    return next((each // blocks for blocks in (2, 3, 1) if each % blocks == 0), 1)


def _korthikanti(row: int, cells: Mapping[str, str], source: str) -> Record | str:
    selective = cells["recompute"].startswith("selective")
    strategy = _dense(
        cells,
        recompute="selective" if selective else "full",
        sequence_parallel="sequence" in cells["recompute"],
    )
    return _record(row, cells, source, strategy, "dgx-a100-80gb", float(cells["step_time_s"]))


def _mt_nlg(row: int, cells: Mapping[str, str], source: str) -> Record | str:
    strategy = _dense(cells, recompute="full", framework="deepspeed", virtual=1, schedule="1f1b")
    return _record(row, cells, source, strategy, "dgx-a100-80gb", float(cells["step_time_s"]))


def _llama3(row: int, cells: Mapping[str, str], source: str) -> Record | str:
    seq = int(cells["seq"])
    context = 16 if seq > 8192 else 1
    tensor, pipeline, gpus = int(cells["tp"]), int(cells["pp"]), int(cells["gpus"])
    data = gpus // (tensor * pipeline * context)
    passes = 16 if gpus == 16384 else 32
    batch = passes * data
    model = get_model("llama-3.1-405b")
    flops = float(cells["tflops_per_gpu"]) * 1e12 * gpus
    # "BF16 MFU": model FLOPs by the paper's own count, attention with a causal mask halved.
    counted = model.flops(seq) - 0.5 * _attention_flops(model, seq)
    strategy = Strategy(
        tensor=tensor,
        sequence_parallel=True,
        context=context,
        context_kind="all_gather",
        pipeline=pipeline,
        virtual=4,
        schedule="interleaved",
        data=data,
        micro_batch=1,
        micro_batches=passes,
        seq=seq,
        compiled=True,
        precision=precision_of("bf16", "megatron", "zero1"),
        data_parallel=DataParallel(kind="zero2"),
        order=("tensor", "context", "pipeline", "data"),
    )
    return _record(
        row,
        cells,
        source,
        strategy,
        "hgx-h100",
        counted * batch / flops,
        model=model,
        assumed="4 chunks a pipeline rank; FLOPs with the causal half of attention",
    )


def _attention_flops(model: object, seq: int) -> float:
    """Return forward and backward FLOPs of the scores and their products with values."""
    layers, width = 126, 16384
    return 3.0 * layers * 4.0 * seq * seq * width


def _bloom(row: int, cells: Mapping[str, str], source: str) -> Record | str:
    model = from_dims(
        name="bloom-176b",
        source="bigscience train/tr11-176B-ml",
        hidden=14336,
        layers=70,
        heads=112,
        vocab=250880,
        seq=2048,
        position="alibi",
        embedding_norm=True,
    )
    strategy = _dense(
        cells,
        recompute="full",
        dropout=False,
        precision=precision_of("bf16", "megatron", "zero1"),
        data_parallel=DataParallel(kind="zero1", overlap_reduce=False, overlap_gather=False),
        framework="deepspeed",
    )
    return _record(
        row,
        cells,
        source,
        strategy,
        "dgx-a100-80gb+4xib100",
        float(cells["step_time_s"]),
        model=model,
        blocking=True,
    )


def _bloomberg(row: int, cells: Mapping[str, str], source: str) -> Record | str:
    del row, cells, source
    return "micro-batch and shard groups of SageMaker's ZeRO-3 are not given"


def _azure(row: int, cells: Mapping[str, str], source: str) -> Record | str:
    if not cells["micro_batch"]:
        return "micro-batch not given"
    gpus, micro = int(cells["gpus"]), int(cells["micro_batch"])
    if cells["model"] == "2T":
        return "offloads to the host in ways the source does not say"
    seconds = megatron_seconds(
        float(cells["tflops_per_gpu"]),
        gpus,
        batch=gpus * micro,
        seq=int(cells["seq"]),
        layers=int(cells["layers"]),
        hidden=int(cells["hidden"]),
        vocab=50304,
        recomputed=True,
    )
    strategy = Strategy(
        data=gpus,
        micro_batch=micro,
        seq=int(cells["seq"]),
        recompute="full",
        attention="standard",
        compiled=True,
        dropout=True,
        precision=precision_of("fp16", "deepspeed", "zero3"),
        data_parallel=DataParallel(kind="zero3", reduce_every_micro_batch=True),
        framework="deepspeed",
    )
    return _record(
        row,
        cells,
        source,
        strategy,
        "azure-ndm-a100-v4",
        seconds,
        model=_gpt(cells, vocab=50304),
    )


def _unknown(row: int, cells: Mapping[str, str], source: str) -> str:
    return "no rule for this paper"


_RULES: dict[str, Callable[[int, Mapping[str, str], str], Record | str]] = {
    "Megatron-LM SC21 Table 1": _sc21,
    "Megatron-LM 2020": _megatron_2020,
    "Megatron-Core": _megatron_core,
    "Korthikanti": _korthikanti,
    "MT-NLG": _mt_nlg,
    "Llama 3 herd": _llama3,
    "BLOOM": _bloom,
    "BloombergGPT": _bloomberg,
    "DeepSpeed on Azure": _azure,
}
"""By what a paper's name begins with."""
