"""Which versions and variables of NCCL can be modelled, asked before a cluster is built."""

from __future__ import annotations

from simulator.base.errors import Problem, ScenarioError
from simulator.costs.nccl.version import NcclVersion, nearest_supported
from simulator.costs.profile import load_profile
from simulator.costs.variables import library_variables, parse_variables

__all__ = ["default_version", "is_default", "is_modelled", "refusal_of"]


def is_modelled(version: str) -> bool:
    """Return True for a version of NCCL that the model has, or has a stand-in for.

    Examples
    --------
    >>> is_modelled("2.21.5"), is_modelled("2.3.7")
    (True, False)
    """
    try:
        nearest_supported(NcclVersion.parse(version))
    except ScenarioError:
        return False
    return True


def default_version() -> str:
    """Return the version that is modelled where none is given."""
    return load_profile("nccl").version


def is_default(name: str, value: str) -> bool:
    """Return True where a variable of NCCL is set to what it is without being set.

    Examples
    --------
    >>> is_default("NCCL_P2P_DISABLE", "0"), is_default("NCCL_P2P_DISABLE", "1")
    (True, False)
    """
    variable = library_variables("nccl").get(name)
    if variable is None or variable.default is None:
        return False
    return value.strip() == str(variable.default)


def refusal_of(name: str, value: str, version: str | None) -> Problem | None:
    """Return what is wrong with the value of a variable of NCCL, None where nothing is.

    Examples
    --------
    >>> refusal_of("NCCL_NTHREADS", "256", None)
    >>> print(refusal_of("NCCL_NTHREADS", "1024", None).message)
    1024 is outside its range
    """
    known = version if version is not None and is_modelled(version) else default_version()
    try:
        parse_variables({name: value}, "nccl", nearest_supported(NcclVersion.parse(known))[0])
    except ScenarioError as error:
        return error.problems[0]
    return None
