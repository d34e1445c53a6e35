"""NVIDIA Megatron-Bridge: Llama 3, DeepSeek-V3, Qwen3, GPT-OSS on H100, B200, B300, GB200, GB300.

docs/performance-summary.md and -archive.md.  Tokens/s per GPU.  CUDA graphs replay launches in
these recipes; experts are loaded evenly (``moe_router_force_load_balancing``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulator.models import get_model
from simulator.training.strategy import DataParallel, Strategy
from validation.training.record import Excluded, Record, rows_of
from validation.training.sources.common import precision_of

__all__ = ["records"]

SOURCE = "megatron-bridge"
_MODELS = {
    "LLAMA3_8B": "llama-3-8b",
    "LLAMA3_70B": "llama-3-70b",
    "LLAMA3.1_405B": "llama-3.1-405b",
    "DeepSeekV3": "deepseek-v3",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "GPT OSS 120B": "gpt-oss-120b",
}
_NODES = {
    "DGX-H100": ("dgx-h100", 8),
    "DGX-B200": ("dgx-b200", 8),
    "DGX-B300": ("dgx-b300", 8),
    "DGX-GB200": ("gb200-nvl72", 4),
    "DGX-GB300": ("gb300-nvl72", 4),
}
_TYPES = {"BF16": "bf16", "FP8": "fp8", "MXFP8": "fp8", "NVFP4": "fp4"}
_SUPERSEDED = (
    "a newer container runs the same model, machine, type and batch, up to 1.7 times as fast"
)
_HYBRID = ("Nemotron_3", "DeepSeekV4", "Kimi")


def records() -> Iterator[Record | Excluded]:
    """Generate the records."""
    seen: set[tuple[str, ...]] = set()
    for row, cells in rows_of("megatron_bridge_performance.csv"):
        # The newest container comes first.
        key = _configuration(cells)
        made = _SUPERSEDED if key in seen else _record(row, cells)
        seen.add(key)
        if isinstance(made, str):
            yield Excluded(source=SOURCE, row=row, reason=made)
        else:
            yield made


def _configuration(cells: Mapping[str, str]) -> tuple[str, ...]:
    """Return what makes two rows the same run but for the software."""
    heading = cells["heading"]
    name = cells["Model"] or _after(heading, "Model")
    system = cells["System"] or _after(heading, "System")
    kind = cells["Precision"].replace("-CS", "").replace("-MX", "").partition(" ")[0]
    return (
        name.strip(),
        system.strip(),
        kind.removeprefix("MX"),
        heading.partition(" Performance / ")[0].rpartition(" / ")[2],
        *(cells[column] for column in ("#-GPUs", "GBS", "Sequence Length")),
        str("LoRA" in heading),
        str("SFT" in heading),
    )


def _after(heading: str, key: str) -> str:
    return heading.partition(f"{key}: ")[2].partition(" / ")[0].strip()


def _whole(text: str, default: int = 1) -> int:
    text = text.strip()
    return int(float(text)) if text and text != "n/a" else default


def _record(row: int, cells: Mapping[str, str]) -> Record | str:
    heading = cells["heading"]
    name = (cells["Model"] or _after(heading, "Model")).strip()
    system = (cells["System"] or _after(heading, "System")).strip()
    if "LoRA" in heading:
        return "LoRA: frozen weights have no gradients, which is not modelled"
    if name.startswith(_HYBRID):
        return "layers of another kind (state space, sparse attention) or sizes not public"
    kind = cells["Precision"].replace("-CS", "").replace("-MX", "").partition(" ")[0]
    if kind not in _TYPES:
        return "precision not given"
    dropped = "tokendrop" in name
    model = get_model(_MODELS[name.partition(" (")[0]])
    gpus, seq = int(cells["#-GPUs"]), int(cells["Sequence Length"])
    tensor, pipeline = _whole(cells["TP"]), _whole(cells["PP"])
    context, virtual = _whole(cells["CP"]), _whole(cells["VP"])
    data = gpus // (tensor * pipeline * context)
    micro, batch = int(cells["MBS"]), int(cells["GBS"])
    passes, rest = divmod(batch, micro * data)
    if rest:
        return f"batch {batch} is no multiple of micro-batch {micro} x {data}"
    sharded = _whole(cells["FSDP"], 0) > 1
    assumed = ""
    divides = any((model.blocks + extra) % (pipeline * virtual) == 0 for extra in (0, 1, 2))
    if not divides:
        assumed = "stages whose numbers of blocks differ by one"
    if virtual > 1 and pipeline * virtual == model.blocks + 2:
        # Parts that hold an embedding or a head only are taken with their neighbours.
        virtual //= 2
        assumed = "chunks of two blocks where the recipe has one"
    node, per_node = _NODES[system]
    rate = float(cells["Tokens / sec / GPU"].partition(" ")[0].replace(",", ""))
    strategy = Strategy(
        tensor=tensor,
        sequence_parallel=tensor > 1,
        overlap_tensor=tensor > 1,
        context=context,
        pipeline=pipeline,
        virtual=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        expert=_whole(cells["EP"]) if model.experts else 1,
        expert_tensor=1 if model.experts else None,
        capacity_factor=1.0 if dropped else None,
        data=data,
        micro_batch=micro,
        micro_batches=passes,
        seq=seq,
        compiled=True,
        precision=precision_of(_TYPES[kind], "megatron", "zero1", gradient_bytes=4, reduce_bytes=2),
        data_parallel=DataParallel(
            kind="fsdp" if sharded else "zero1", reduce_every_micro_batch=sharded
        ),
        framework="megatron" if divides else "torch",
    )
    return Record(
        source=SOURCE,
        row=row,
        label=f"{name} {system} {gpus} {kind} tp{tensor} pp{pipeline} cp{context} v{virtual} "
        f"ep{strategy.expert}",
        model=model,
        strategy=strategy,
        node=node,
        nodes=max(1, gpus // per_node),
        measured_s=batch * seq / (rate * gpus),
        graphs=True,
        assumed=assumed,
    )
