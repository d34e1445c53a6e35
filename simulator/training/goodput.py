"""Training over days: checkpoints, failures, restarts, and what is left of the time.

References
----------
.. [1] J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974):
   the interval √(2 δ M).
.. [2] J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps,
   FGCS 22 (2006): equations 20 (run time) and 37 (interval).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.base.errors import Problem, ScenarioError

__all__ = ["Goodput", "Reliability", "daly_interval_s", "daly_share", "simulate_days", "young_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """How often nodes fail, and what a failure costs."""

    duration_s: float
    """Time that is simulated."""
    n_nodes: int
    """Nodes that the job needs."""
    node_mtbf_s: float
    """Mean time between failures of one node (exponential)."""
    checkpoint_s: float
    """Training stands so long for each checkpoint."""
    interval_s: float
    """Training between two checkpoints."""
    restart_s: float
    """From a failure to the first new step: detection, new processes, loading the checkpoint."""
    repair_s: float
    """Until a failed node is back."""
    spares: int = 0
    """Nodes that stand by; one replaces a failed node within the restart."""
    nodes_per_replica: int | None = None
    """Elastic: the job goes on with as many whole data-parallel replicas as nodes are left; None:
    it waits for the repair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Shares of the simulated time, mean over runs; they sum to one."""

    useful: float
    """Training whose result is kept, counted at the full job's speed."""
    lost: float
    """Training since the last checkpoint, done again after a failure."""
    checkpoint: float
    restart: float
    waiting: float
    """For repairs, with too few nodes to run."""
    shrunk: float
    """Running with fewer replicas: the speed that is missing."""
    failures: float
    """Of nodes of the running job, in one run."""
    spread: float
    """Standard deviation of `useful` over runs."""


def young_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Return Young's interval between checkpoints [1]_."""
    return math.sqrt(2.0 * checkpoint_s * mtbf_s)


def daly_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Return Daly's interval of training between checkpoints, equation 37 of [2]_.

    Examples
    --------
    >>> round(daly_interval_s(60.0, 3600.0)), round(young_s(60.0, 3600.0))
    (618, 657)
    """
    if checkpoint_s >= 2.0 * mtbf_s:
        return mtbf_s
    part = checkpoint_s / (2.0 * mtbf_s)
    return young_s(checkpoint_s, mtbf_s) * (1.0 + math.sqrt(part) / 3.0 + part / 9.0) - checkpoint_s


def daly_share(interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Return the useful share of the time, equation 20 of [2]_: failures during restarts too."""
    wall = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + checkpoint_s) / mtbf_s)
    return interval_s / wall


def simulate_days(
    given: Reliability,
    speed: Callable[[int], float],
    *,
    runs: int = 32,
    seed: int = 0,
) -> Goodput:
    """Simulate failures, restarts and repairs over the given time, several times.

    Parameters
    ----------
    given
        Rates and costs.
    speed
        Speed of the job on a number of nodes over that on all, 0 … 1.
    runs
        Independent runs, whose mean is returned.
    seed
        Of the failures.

    Raises
    ------
    ScenarioError
        A time that is not positive.

    Notes
    -----
    Nodes fail independently, at a constant rate, also while the job restarts; a node under repair
    and a spare do not fail.  A repaired node joins an elastic job at its next checkpoint, at the
    cost of one restart.  Not modelled: failures of switches that take several nodes along, slow
    nodes, checkpoints that are corrupt.
    """
    for name in ("duration_s", "node_mtbf_s", "interval_s"):
        if getattr(given, name) <= 0:
            raise ScenarioError(
                Problem(key=name, message=f"{getattr(given, name)} s", allowed="more than 0 s")
            )
    streams = np.random.default_rng(seed).spawn(runs)
    each = [_Run(given, speed, stream).go() for stream in streams]
    mean = {name: sum(run[name] for run in each) / runs for name in each[0]}
    useful = np.array([run["useful"] for run in each])
    return Goodput(**mean, spread=float(useful.std()))


class _Run:
    """One history of a job."""

    def __init__(
        self, given: Reliability, speed: Callable[[int], float], rng: np.random.Generator
    ) -> None:
        self.given = given
        self.speed = speed
        self.rng = rng
        self.now = 0.0
        self.back_s: list[float] = []
        """When nodes under repair are back."""
        self.spent = dict.fromkeys(
            ("useful", "lost", "checkpoint", "restart", "waiting", "shrunk", "failures"), 0.0
        )

    def go(self) -> dict[str, float]:
        given = self.given
        nodes = self._nodes()
        failure = self._next_failure(nodes)
        while self.now < given.duration_s:
            if nodes == 0:
                self._wait()
                nodes, failure = self._restarted()
                continue
            # Train until the next checkpoint; what is not saved is lost.
            rate = self.speed(nodes)
            end = self.now + given.interval_s + given.checkpoint_s
            stop = min(end, failure, given.duration_s)
            trained = min(stop - self.now, given.interval_s)
            saving = stop - self.now - trained
            kept = "lost" if failure < end and failure <= given.duration_s else "useful"
            self.spent[kept] += trained * rate
            self.spent["shrunk"] += trained * (1.0 - rate)
            self.spent["checkpoint"] += saving
            self.now = stop
            if stop >= given.duration_s:
                break
            if stop == failure:
                self._fail()
                nodes, failure = self._restarted()
            elif self._nodes() > nodes:
                nodes, failure = self._restarted()
        shares = {key: value / given.duration_s for key, value in self.spent.items()}
        shares["failures"] = self.spent["failures"]
        return shares

    def _nodes(self) -> int:
        """Return nodes that the job runs on now; 0: too few."""
        given = self.given
        self.back_s = [at for at in self.back_s if at > self.now]
        left = given.n_nodes - max(0, len(self.back_s) - given.spares)
        if left == given.n_nodes:
            return left
        if given.nodes_per_replica is None:
            return 0
        return left // given.nodes_per_replica * given.nodes_per_replica

    def _next_failure(self, nodes: int) -> float:
        if nodes == 0:
            return math.inf
        return self.now + float(self.rng.exponential(self.given.node_mtbf_s / nodes))

    def _fail(self) -> None:
        self.spent["failures"] += 1.0
        self.back_s.append(self.now + self.given.repair_s)

    def _wait(self) -> None:
        until = min(min(self.back_s, default=self.now), self.given.duration_s)
        self.spent["waiting"] += until - self.now
        self.now = until

    def _restarted(self) -> tuple[int, float]:
        """Restart; failures meanwhile make it begin again.  Return nodes and the next failure."""
        while (nodes := self._nodes()) > 0:
            failure = self._next_failure(nodes)
            stop = min(self.now + self.given.restart_s, failure, self.given.duration_s)
            self.spent["restart"] += stop - self.now
            self.now = stop
            if stop < failure or stop >= self.given.duration_s:
                return nodes, failure
            self._fail()
        return 0, math.inf
