"""collsim: a discrete-event simulator of GPU-cluster communication.

>>> import simulator
>>> result = simulator.run(
...     node="dgx-h100", nodes=2, collective={"op": "all_reduce", "size": "1 GiB"}
... )
>>> result.rows[0].world_size
16
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.results.model import RunResult

__all__ = ["__version__", "run"]

__version__ = "0.1.0"


def run(
    scenario: str | Path | None = None,
    *,
    overrides: Iterable[str] = (),
    record: bool | None = None,
    workers: int | None = None,
    **sections: Any,
) -> RunResult:
    """Simulate a scenario and return its result.

    Parameters
    ----------
    scenario
        Path of a scenario file; None: the scenario is given by `sections`.
    overrides
        Words ``"fabric.oversubscription=2"`` laid over the file.
    record
        Keep every message, for traces and step plots; None: as the scenario says.
    workers
        Processes for sweeps; None: one per core.
    **sections
        Keys of a scenario, with quantities as text: ``node="dgx-h100", nodes=4,
        collective={"op": "all_reduce", "size": "1 GiB"}``.

    Returns
    -------
    RunResult
        ``result.rows``, ``result.to_frame()`` (pandas), ``result.links``, ``result.ranks``.

    Raises
    ------
    CollsimError
        What the scenario says is wrong or cannot finish; all problems at once.
    """
    import yaml

    from simulator.compose.sweep import run_set
    from simulator.scenario.resolve import load, loads

    if scenario is not None:
        if sections:
            raise TypeError("give a scenario file or sections, not both; use overrides")
        scenarios = load(scenario, overrides=overrides)
    else:
        text = yaml.safe_dump({"schema_version": 1, **sections}, sort_keys=False)
        scenarios = loads(text, name="simulator.run", overrides=overrides)
    return run_set(scenarios, record=record, workers=workers)
