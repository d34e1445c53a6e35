"""Variables in a log that can explain a slow run, and what of a log's settings cannot be used.

What NCCL would refuse, or the model does not have, is a warning and left out: the log is judged
without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from simulator.base.errors import Problem
from simulator.compose.variable_values import default_version, is_default, is_modelled, refusal_of
from simulator.importers import MeasuredTable

__all__ = ["FAULT_VARIABLES", "fault_variables", "modelled_version", "unusable_settings"]

FAULT_VARIABLES = re.compile(
    r"^NCCL_(P2P_DISABLE|P2P_LEVEL|SHM_DISABLE|IB_DISABLE|NET_GDR_LEVEL|NET_GDR_READ|ALGO|PROTO"
    r"|M(?:IN|AX)_(?:NCHANNELS|CTAS)|NET|IB_HCA|CROSS_NIC|PXN_DISABLE|NVLS_ENABLE|COLLNET_ENABLE"
    r"|NTHREADS|BUFFSIZE|IB_QPS_PER_CONNECTION|SOCKET_NTHREADS|NSOCKS_PERTHREAD)$"
)
"""Variables that can be the cause of a slow run."""


def fault_variables(table: MeasuredTable) -> Mapping[str, str]:
    """Return those of a table's variables that can explain a slow run and that NCCL takes.

    One that is set to its default explains nothing.
    """
    return {
        name: value
        for name, value in _candidates(table).items()
        if _problem(table, name) is None and not is_default(name, value)
    }


def modelled_version(table: MeasuredTable) -> str | None:
    """Return the library's version where the log tells one that the model has."""
    version = table.nccl_version
    return version if version is not None and is_modelled(version) else None


def unusable_settings(table: MeasuredTable) -> list[Problem]:
    """Return a warning, with file and line, for each setting that the prediction leaves out."""
    problems = [_problem(table, name) for name in _candidates(table)]
    version = table.nccl_version
    if version is not None and not is_modelled(version):
        problems.append(
            Problem(
                file=table.source,
                message=f"NCCL {version} is not modelled: predicted as NCCL {default_version()}",
            )
        )
    return [problem for problem in problems if problem is not None]


def _candidates(table: MeasuredTable) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(table.environment.items())
        if value and FAULT_VARIABLES.match(name)
    }


def _problem(table: MeasuredTable, name: str) -> Problem | None:
    value = table.environment[name]
    if "$" in value:
        refusal: Problem | None = Problem(
            message=f"the log does not tell what {value!r} stands for"
        )
    else:
        refusal = refusal_of(name, value, table.nccl_version)
    if refusal is None:
        return None
    return Problem(
        file=table.source,
        line=table.environment_lines.get(name),
        key=name,
        message=f"{refusal.message}: left out of the prediction",
        allowed=refusal.allowed,
    )
