"""Files of other tools, told by their content: what one is, and which command reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Foreign", "recognise"]

_LOOKED_AT = 256 * 1024
"""Bytes of a file that are looked at."""

_NOT_YET = "no command reads it; name the node with --node, or describe it under `topology`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A kind of file that is no scenario."""

    what: str
    """In words, such as ``a log of nccl-tests``."""
    read_by: str
    """Commands that read it, with FILE for its path, or what to do instead."""


_KINDS: tuple[tuple[str, Foreign], ...] = (
    (
        r"#\s+size\s+count\s+type|out-of-place\s+in-place|NCCL INFO |# nThread:? *\d"
        r"|\d +\d+ +\w+ +(sum|prod|min|max|avg|none) +-?\d",
        Foreign(
            what="a log of nccl-tests or of NCCL",
            read_by="collsim check FILE, collsim compare FILE or collsim fit FILE",
        ),
    ),
    (
        r"^\s*(\x1b\[\S*)?\s*GPU0.*\bGPU1\b|^GPU0\s+X\b",
        Foreign(what="the matrix of nvidia-smi topo -m", read_by=_NOT_YET),
    ),
    (r"<system\b[^>]*>\s*<cpu\b", Foreign(what="a topology of NCCL in XML", read_by=_NOT_YET)),
    (r"<graphs\b", Foreign(what="a dump of NCCL's graphs in XML", read_by="no command reads it")),
    (
        r"nvbandwidth Version|memcpy CE CPU|#bytes\s+#iterations\s+BW|BW peak\[",
        Foreign(what="a link test", read_by="collsim check LOG --link FILE"),
    ),
    (r'"traceEvents"\s*:', Foreign(what="a profiler's trace", read_by="no command reads it")),
    (
        r'"zero_optimization"\s*:|"train_micro_batch_size_per_gpu"\s*:',
        Foreign(what="a DeepSpeed config", read_by="collsim step --model NAME --deepspeed FILE"),
    ),
    (
        r'"model_type"\s*:|"architectures"\s*:',
        Foreign(what="a model's config.json", read_by="collsim step --model FILE"),
    ),
    (
        r"^\s*\[(model|parallelism|training|job)\]\s*$",
        Foreign(what="a torchtitan job", read_by="collsim step, with its values as options"),
    ),
    (
        r'^  "provenance"\s*:',
        Foreign(
            what="the JSON of a run",
            read_by="any JSON reader; its scenario stands under `provenance`",
        ),
    ),
)


def recognise(path: str) -> Foreign | None:
    """Return what kind of another tool's file a path is; None for others, and where none is.

    Scenarios of ours, which have a ``schema_version`` at the start of a line, never are.

    Examples
    --------
    >>> recognise("no such file") is None
    True
    """
    try:
        place = Path(path)
        if not place.is_file():
            return None
        with place.open("rb") as file:
            text = file.read(_LOOKED_AT).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return None
    if re.search(r"^schema_version\s*:", text, flags=re.MULTILINE):
        return None
    for pattern, kind in _KINDS:
        if re.search(pattern, text, flags=re.MULTILINE):
            return kind
    return None
