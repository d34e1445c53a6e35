"""The constants of NCCL as data: ``tuning.yaml``, ``topology.yaml``, ``environment.yaml``."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml

from simulator.costs.nccl.version import NcclVersion, row_since

__all__ = ["read_table", "since"]


@cache
def read_table(name: str) -> dict[str, Any]:
    """Return the tables of a data file of this package, such as ``tuning``."""
    text = resources.files("simulator.costs.nccl").joinpath(f"{name}.yaml").read_text("utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data: dict[str, Any] = yaml.load(text, Loader=loader)
    return data


@cache
def since(name: str, key: str, version: NcclVersion) -> dict[str, Any]:
    """Return the row of a table that holds for *version*.

    Parameters
    ----------
    name
        Data file.
    key
        Table, with a dot between levels: ``hop_latency_us.nvlink``.
    """
    table: Any = read_table(name)
    for part in key.split("."):
        table = table[part]
    row: dict[str, Any] = row_since(table, version)
    return row
