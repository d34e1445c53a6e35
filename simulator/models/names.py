"""Models by name: data files, forgiving spelling, and sizes given by hand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from simulator.base.errors import CollsimError, unknown_name
from simulator.models.convolution import residual_network
from simulator.models.dims import read_dims
from simulator.models.model import Model
from simulator.models.transformer import transformer

__all__ = ["from_dims", "get_model", "model_names"]

_SUFFIX = re.compile(r"-(hf|base|instruct|chat|it|v0\.[1-9]|pt|bf16)$")


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    source: str
    sizes: dict[str, Any]
    convolutional: bool


def _fold(name: str) -> str:
    """Return the name without owner, separators and usual endings.

    >>> _fold("meta-llama/Llama-2-70b-hf"), _fold("llama2_70B")
    ('llama270b', 'llama270b')
    """
    text = name.strip().lower().rpartition("/")[2].replace("_", "-")
    while _SUFFIX.search(text):
        text = _SUFFIX.sub("", text)
    return re.sub(r"[^a-z0-9.]", "", text.removeprefix("meta-"))


@lru_cache(maxsize=1)
def _catalogue() -> tuple[dict[str, _Entry], dict[str, str]]:
    """Return entries by name, and names by folded spelling."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries: dict[str, _Entry] = {}
    spellings: dict[str, str] = {}
    folder = resources.files("simulator.models") / "data"
    for item in sorted(folder.iterdir(), key=lambda file: file.name):
        if not item.name.endswith(".yaml"):
            continue
        families: dict[str, Any] = yaml.load(item.read_text("utf-8"), Loader=loader)
        for family in families.values():
            for name, own in family["models"].items():
                sizes = {**family["common"], **own}
                aliases = sizes.pop("aliases", [])
                entries[name] = _Entry(
                    name, family["source"], sizes, family.get("kind") == "convolutional"
                )
                for spelling in (name, *aliases):
                    if spellings.setdefault(_fold(spelling), name) != name:
                        raise ValueError(f"{spelling!r} names two models")
    # llama31-405b is clear without its point; gpt3-13b is not.
    plain: dict[str, set[str]] = {}
    for spelling, name in spellings.items():
        plain.setdefault(spelling.replace(".", ""), set()).add(name)
    for spelling, names in plain.items():
        if len(names) == 1:
            spellings.setdefault(spelling, *names)
    return entries, spellings


def model_names() -> list[str]:
    """Return the names of all models that come with the package."""
    return sorted(_catalogue()[0])


def get_model(name: str, **overrides: Any) -> Model:
    """Return a model by name, with other sizes where wanted.

    Parameters
    ----------
    name
        As people type it: ``llama-2-70b``, ``Llama2_70B``, ``meta-llama/Llama-2-70b-hf``.
    overrides
        Sizes of `simulator.models.dims.Dims` that replace the model's (``layers=4``); of residual
        networks ``image`` and ``classes``.

    Raises
    ------
    CollsimError
        Unknown name; with the nearest one.
    ScenarioError
        Sizes that do not fit together.

    Examples
    --------
    >>> get_model("gpt2").n_parameters
    124439808
    """
    entries, spellings = _catalogue()
    found = spellings.get(_fold(name))
    if found is None:
        raise CollsimError(unknown_name("model", name, entries))
    entry = entries[found]
    sizes = {**entry.sizes, **overrides}
    title = found if not overrides else f"{found} (changed)"
    if entry.convolutional:
        return residual_network(title, sizes, entry.source)
    return transformer(title, read_dims(sizes), entry.source)


def from_dims(*, name: str = "custom", source: str = "given by hand", **dims: Any) -> Model:
    """Return a transformer of the given sizes (fields of `simulator.models.dims.Dims`).

    Raises
    ------
    ScenarioError
        Unknown, missing or contradicting sizes, all at once.

    Examples
    --------
    >>> from_dims(hidden=1024, layers=2, heads=16).blocks
    2
    """
    return transformer(name, read_dims(dims), source)
