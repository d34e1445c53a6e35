"""A step's plan on the engine: one program for each class of ranks, or for each rank.

Folded, a call is a flow on the links near the ranks that stand for the others: it lasts as long as
its price says while nobody else needs those links, and shares them max-min fairly otherwise.
Unfolded, every call of every group runs on the whole network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import SimulationError
from simulator.collectives.call import Call as CollectiveCall
from simulator.compose.step.classes import Classes
from simulator.compose.step.lockstep import (
    Part,
    beside_at,
    exposed_parts,
    lockstep,
    overlapped,
)
from simulator.compose.step.priced import flow, meeting, one_way
from simulator.compose.step.prices import Price, Pricer, Resource
from simulator.engine.outcome import Outcome
from simulator.engine.simulate import simulate
from simulator.engine.traffic import Collective, Network, Program, Start
from simulator.engine.traffic import Compute as EngineCompute
from simulator.engine.traffic import Wait as EngineWait
from simulator.results.trace import kernel_name
from simulator.training.plan import Call, Compute, StepPlan, Task, Transfer

__all__ = ["Kinds", "Part", "Timeline", "call_of", "run_exact", "run_folded"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

SHARED = 1.02
"""Links that two calls together would fill by less than this are not shared between them."""
RIVAL_SHARE = 0.02
"""Calls that take less than this share of a stage's computes in all are too short to hold up those
of another axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What the engine did with a plan."""

    outcome: Outcome
    classes: Classes
    parts: Mapping[str, tuple[Part, ...]]
    """What a compute of that name consists of, in order."""
    prices: Mapping[tuple[str, str, int], Price]
    """By (axis, collective, size), of the first group priced; empty where unfolded."""
    unit_of_rank: Mapping[int, int]
    """Class by the engine's rank."""
    kernels: Mapping[str, str]
    """Name of the library's kernel by name of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """The step on each kind of node: the same tasks, computes of other length."""

    plans: tuple[StepPlan, ...]
    of_rank: IntArray
    """Place in `plans` of each rank's, shape (world,)."""


def run_folded(
    plan: StepPlan,
    pricer: Pricer,
    classes: Classes,
    *,
    slow: FloatArray,
    late_s: FloatArray,
    done: FloatArray,
    slowdown: float,
    kinds: Kinds,
) -> Timeline:
    """Simulate a step with one rank of each class.

    Parameters
    ----------
    plan, pricer, classes
        What ranks do, what calls cost, who is alike.
    slow
        Factor on the compute times of each rank, shape (world,).
    late_s
        How late each rank begins, shape (world,).
    done
        Share of its operations that each rank does before it leaves, shape (world,).
    slowdown
        Share by which computes take longer while their rank communicates.
    kinds
        The plan on each kind of node.
    """
    return _Folded(plan, pricer, classes, slow, late_s, done, slowdown, kinds).run()


def run_exact(
    plan: StepPlan,
    pricer: Pricer,
    classes: Classes,
    *,
    slow: FloatArray,
    late_s: FloatArray,
    done: FloatArray,
    slowdown: float,
    kinds: Kinds,
) -> Timeline:
    """Simulate a step with all ranks on the whole network; as `run_folded`."""
    return _Exact(plan, pricer, classes, slow, late_s, done, slowdown, kinds).run()


def communicator(traffic: str, axis: str, stream: str) -> str:
    """Return the name under which calls of a stream match; its first part is the traffic."""
    return f"{traffic}|{axis}|{stream}"


class _Assembly(ABC):
    """From tasks to the engine's programs; the two ways differ in what a call becomes."""

    def __init__(
        self,
        plan: StepPlan,
        pricer: Pricer,
        classes: Classes,
        slow: FloatArray,
        late_s: FloatArray,
        done: FloatArray,
        slowdown: float,
        kinds: Kinds,
    ) -> None:
        self.slowdown = slowdown
        self.kinds = kinds
        self.plan = plan
        self.pricer = pricer
        self.classes = classes
        self.slow = slow
        self.late_s = late_s
        self.done = done
        self.parts: dict[str, tuple[Part, ...]] = {}
        self._named: dict[object, str] = {}
        self.made: dict[object, Collective] = {}
        self.prices: dict[tuple[str, str, int], Price] = {}
        self.kernels: dict[str, str] = {}
        self._pairs: dict[tuple[int, int], IntArray] = {}

    # What a call becomes ----------------------------------------------------------------------

    @abstractmethod
    def call(self, unit: int, task: Call) -> Collective:
        """Return the engine's form of a call."""

    @abstractmethod
    def transfer(self, unit: int, task: Transfer) -> Collective:
        """Return the engine's form of a transfer."""

    @abstractmethod
    def network(self) -> Network:
        """Return the links that calls and transfers use; asked for after all of them are made."""

    def inlined_s(self, unit: int, task: Call) -> float | None:
        """Return the time of a call that can be a part of a compute; None: it cannot."""
        return None

    def together(self, unit: int, tasks: Sequence[Task]) -> dict[int, tuple[list[Part], int]]:
        """Return parts in place of calls in lockstep with other classes, by index of the task."""
        return {}

    # Programs ---------------------------------------------------------------------------------

    def run(self) -> Timeline:
        programs = []
        for unit, rank in enumerate(self.classes.representative.tolist()):
            operations = self._operations(unit, float(self.slow[rank]), self.tasks_of(unit))
            kept = int(len(operations) * self.done[rank])
            programs.append(
                Program(
                    ranks=self.unit_ranks(unit),
                    operations=tuple(operations[:kept]),
                    start_s=float(self.late_s[rank]),
                )
            )
        outcome = simulate(self.network(), programs, level="folded", compute_slowdown=self.slowdown)
        return Timeline(
            outcome=outcome,
            classes=self.classes,
            parts=self.parts,
            prices=self.prices,
            kernels=self.kernels,
            unit_of_rank={
                int(self.unit_ranks(unit)[0]): unit for unit in range(self.classes.n_classes)
            },
        )

    def kind_of(self, unit: int) -> int:
        """Return the kind of node of a class's ranks."""
        return int(self.kinds.of_rank[int(self.classes.representative[unit])])

    def tasks_of(self, unit: int) -> Sequence[Task]:
        """Return what a class does, with the times of its kind of node."""
        rank = int(self.classes.representative[unit])
        stage = int(self.plan.mesh.stage_of_rank[rank])
        return self.kinds.plans[self.kind_of(unit)].roles[stage].tasks

    def unit_ranks(self, unit: int) -> IntArray:
        """Return the engine's rank of a class: the GPU that stands for it, so messages name it."""
        return self.pricer.ranks[[int(self.classes.representative[unit])]]

    def _operations(
        self, unit: int, slow: float, tasks: Sequence[Task]
    ) -> list[EngineCompute | Start | EngineWait]:
        done: list[EngineCompute | Start | EngineWait] = []
        held: list[Part] = []

        def release() -> None:
            if held:
                done.append(self._compute(tuple(held)))
                held.clear()

        skip = 0
        together = self.together(unit, tasks)
        for index, task in enumerate(tasks):
            if index < skip:
                continue
            beside = together.get(index) or self._beside(unit, slow, tasks, index)
            if beside is not None:
                parts, skip = beside
                held += parts
                continue
            if isinstance(task, Compute):
                part = Part(
                    name=task.name,
                    duration_s=task.duration_s * slow,
                    purpose=task.purpose,
                    is_call=False,
                )
                if task.stream == "compute":
                    held.append(part)
                    continue
                release()
                done.append(replace(self._compute((part,)), stream=task.stream))
                continue
            if isinstance(task, Call):
                if self._size(task) < 2:
                    continue
                self._name_kernel(unit, task)
                time_s = self.inlined_s(unit, task) if task.stream == "compute" else None
                if time_s is not None:
                    held.append(
                        Part(name=task.name, duration_s=time_s, purpose=task.traffic, is_call=True)
                    )
                    continue
                release()
                if task.after is not None and task.after != task.stream:
                    done.append(EngineWait(on=task.after, stream=task.stream))
                name = communicator(task.traffic, task.axis, task.stream)
                done.append(
                    Start(collective=self.call(unit, task), communicator=name, stream=task.stream)
                )
                continue
            release()
            if isinstance(task, Transfer):
                if task.after is not None and task.after != task.stream:
                    done.append(EngineWait(on=task.after, stream=task.stream))
                done.append(
                    Start(
                        collective=self.transfer(unit, task),
                        communicator=communicator("pipeline", task.tag, task.tag),
                        stream=task.stream,
                        slows=task.direction == "send",
                    )
                )
            else:
                done.append(EngineWait(on=task.on, stream=task.stream, leave=task.leave))
        release()
        return done

    def _name_kernel(self, unit: int, task: Call) -> None:
        if task.name not in self.kernels:
            self.kernels[task.name] = self._kernel(unit, task)

    def _kernel(self, unit: int, task: Call) -> str:
        groups = self.plan.mesh.groups[task.axis]
        group = self.pricer.ranks[groups[self._row(unit, task.axis)]]
        choice = self.pricer.choice(call_of(task, len(group)), group)
        return kernel_name(
            task.collective,
            dtype="bfloat16",
            algorithm=choice.algorithm,
            protocol=choice.protocol,
        )

    def _beside(
        self, unit: int, slow: float, tasks: Sequence[Task], index: int
    ) -> tuple[list[Part], int] | None:
        """Return calls beside computes that are waited for at once, as parts; and what follows."""
        found = beside_at(tasks, index)
        if found is None:
            return None
        calls_s = 0.0
        for call in found.calls:
            if self._size(call) < 2:
                continue
            time_s = self.inlined_s(unit, call)
            if time_s is None:
                return None
            self._name_kernel(unit, call)
            calls_s += time_s
        parts, together_s = overlapped(found, slow, calls_s, self.slowdown)
        exposed_s = max(0.0, calls_s - together_s)
        parts += exposed_parts(found.calls[0], 0.0, exposed_s, calls_s - exposed_s)
        return parts, found.after

    def _compute(self, parts: tuple[Part, ...]) -> EngineCompute:
        if parts not in self._named:
            name = parts[0].name if len(parts) == 1 else f"{parts[0].name} …"
            name = f"{name} #{len(self._named)}"
            self._named[parts] = name
            self.parts[name] = parts
        return EngineCompute(
            name=self._named[parts], duration_s=sum(part.duration_s for part in parts)
        )

    def _size(self, task: Call) -> int:
        groups = self.plan.mesh.groups.get(task.axis)
        return 1 if groups is None else groups.shape[1]

    def _row(self, unit: int, axis: str) -> int:
        row = int(self.classes.row_of_rank[axis][int(self.classes.representative[unit])])
        if row < 0:
            raise SimulationError(
                f"rank {int(self.classes.representative[unit])} calls on axis {axis!r}, "
                "of which it is no member"
            )
        return row

    def _pair_rows(self, unit: int, peer: int) -> tuple[IntArray, int]:
        """Return all pairs of a class's stage and another, lower stage first; and its own row."""
        rank = int(self.classes.representative[unit])
        stage = int(self.plan.mesh.stage_of_rank[rank])
        key = (min(stage, peer), max(stage, peer))
        if key not in self._pairs:
            lines = self.plan.mesh.groups["pipeline"]
            self._pairs[key] = np.ascontiguousarray(lines[:, key])
        return self._pairs[key], self._row(unit, "pipeline")

    def _ends(self, unit: int, task: Transfer) -> IntArray:
        """Return the job ranks that send and receive a transfer."""
        pairs, row = self._pair_rows(unit, task.peer)
        stage = int(self.plan.mesh.stage_of_rank[int(self.classes.representative[unit])])
        upwards = (stage < task.peer) == (task.direction == "send")
        return np.asarray(pairs[row] if upwards else pairs[row][::-1])

    def _transfer_name(self, unit: int, task: Transfer) -> str:
        own = int(self.plan.mesh.stage_of_rank[int(self.classes.representative[unit])])
        ends = (own, task.peer) if task.direction == "send" else (task.peer, own)
        return f"{task.tag} from stage {ends[0]} to {ends[1]}"


def call_of(task: Call | Transfer, world_size: int) -> CollectiveCall:
    """Return the collective call of a task on a group of so many ranks."""
    collective = task.collective if isinstance(task, Call) else "send_recv"
    return CollectiveCall(
        collective=collective,
        world_size=world_size,
        size_bytes=int(task.size_bytes),
        element_bytes=2 if task.size_bytes % 2 == 0 else 1,
    )


class _Folded(_Assembly):
    def __init__(
        self,
        plan: StepPlan,
        pricer: Pricer,
        classes: Classes,
        slow: FloatArray,
        late_s: FloatArray,
        done: FloatArray,
        slowdown: float,
        kinds: Kinds,
    ) -> None:
        super().__init__(plan, pricer, classes, slow, late_s, done, slowdown, kinds)
        self._links: dict[tuple[int, str, str, bytes], int] = {}
        self._loads: dict[int, dict[Resource, bytes]] = {}
        self._group_of: dict[tuple[int, str], IntArray] = {}
        self._inlined: dict[tuple[int, str, str, int], float | None] = {}
        self._rivals = self._other_streams()
        self._lockstep: dict[tuple[int, ...], dict[int, dict[int, tuple[list[Part], int]]]] = {}

    def network(self) -> Network:
        names = [f"{kind} {way} of class {unit}" for unit, kind, way, _ in self._links]
        return Network(capacity_Bps=np.ones(max(1, len(names))), link_name=lambda link: names[link])

    def _other_streams(self) -> dict[int, dict[Resource, float]]:
        """Return, by stage, how far calls beside the compute stream fill links at most."""
        rivals: dict[int, dict[Resource, float]] = {}
        first = {
            int(self.plan.mesh.stage_of_rank[rank]): unit
            for unit, rank in reversed(list(enumerate(self.classes.representative.tolist())))
        }
        for role in self.plan.roles:
            counts: Counter[object] = Counter()
            example: dict[object, Call | Transfer] = {}
            computes_s = 0.0
            for task in role.tasks:
                if isinstance(task, Compute):
                    computes_s += task.duration_s
                if not isinstance(task, Call | Transfer) or task.stream == "compute":
                    continue
                if isinstance(task, Call) and (
                    task.traffic in ("tensor", "context") or self._size(task) < 2
                ):
                    # These are waited for before the compute stream's next call.
                    continue
                key = (
                    (task.axis, task.collective, task.size_bytes)
                    if isinstance(task, Call)
                    else (task.peer, task.size_bytes)
                )
                counts[key] += 1
                example.setdefault(key, task)
            most: dict[Resource, float] = {}
            for what, call in example.items():
                price = self._price(first[role.stage], call)
                if counts[what] * price.time_s < RIVAL_SHARE * computes_s:
                    continue
                for resource, share in price.use.items():
                    most[resource] = max(share, most.get(resource, 0.0))
            rivals[role.stage] = most
        return rivals

    def _price(self, unit: int, task: Call | Transfer) -> Price:
        if isinstance(task, Call):
            groups = self.plan.mesh.groups[task.axis]
            row = self._row(unit, task.axis)
            price = self.pricer.prices(groups, call_of(task, groups.shape[1]), row)[row]
            self.prices.setdefault((task.axis, task.collective, task.size_bytes), price)
            return price
        pairs, row = self._pair_rows(unit, task.peer)
        price = self.pricer.prices(pairs, call_of(task, 2), row)[row]
        self.prices.setdefault(("pipeline", "send_recv", task.size_bytes), price)
        return price

    def _members(self, unit: int, axis: str) -> IntArray:
        key = (unit, axis)
        if key not in self._group_of:
            self._group_of[key] = self.classes.members(self.plan.mesh, axis, unit)
        return self._group_of[key]

    def together(self, unit: int, tasks: Sequence[Task]) -> dict[int, tuple[list[Part], int]]:
        if "tensor" not in self.plan.mesh.groups:
            return {}
        members = tuple(sorted(self._members(unit, "tensor").tolist()))
        if len(members) == 1 or len({self.kind_of(member) for member in members}) > 1:
            return {}
        if members not in self._lockstep:
            # Times as the first member sees them, so that all are cut at the same places.
            first = members[0]
            found = lockstep(
                tasks,
                members,
                [float(self.slow[self.classes.representative[m]]) for m in members],
                axis="tensor",
                slowdown=self.slowdown,
                size=self._size,
                time_s=lambda call: self._alone_s(first, call),
            )
            self._lockstep[members] = dict(zip(members, found, strict=True))
        own = self._lockstep[members][unit]
        for index, (_, after) in own.items():
            for task in tasks[index:after]:
                if isinstance(task, Call) and self._size(task) > 1:
                    self._name_kernel(unit, task)
        return own

    def inlined_s(self, unit: int, task: Call) -> float | None:
        if len(self._members(unit, task.axis)) > 1:
            return None
        return self._alone_s(unit, task)

    def _alone_s(self, unit: int, task: Call) -> float | None:
        """Return the price of a call whose links nobody else needs; None: somebody does."""
        key = (unit, task.axis, task.collective, task.size_bytes)
        if key not in self._inlined:
            self._inlined[key] = self._priced_alone_s(unit, task)
        return self._inlined[key]

    def _priced_alone_s(self, unit: int, task: Call) -> float | None:
        price = self._price(unit, task)
        stage = int(self.plan.mesh.stage_of_rank[int(self.classes.representative[unit])])
        rivals = self._rivals[stage]
        if any(share + rivals.get(near, 0.0) > SHARED for near, share in price.use.items()):
            return None
        return price.time_s

    def _load_of(self, unit: int) -> dict[Resource, bytes]:
        """Return what all calls of a class fill each link with: links of one load are one link."""
        if unit not in self._loads:
            prices: dict[object, Price] = {}
            for task in self.tasks_of(unit):
                if isinstance(task, Transfer) or (isinstance(task, Call) and self._size(task) > 1):
                    axis = task.axis if isinstance(task, Call) else task.peer
                    key = (axis, call_of(task, 2).collective, task.size_bytes)
                    if key not in prices:
                        prices[key] = self._price(unit, task)
            near = dict.fromkeys(resource for price in prices.values() for resource in price.use)
            loads = np.array([[p.use.get(r, 0.0) for p in prices.values()] for r in near])
            told = [load.round(6).tobytes() for load in loads]
            self._loads[unit] = dict(zip(near, told, strict=True))
        return self._loads[unit]

    def _route(
        self, unit: int, use: Mapping[Resource, float], keep: Callable[[Resource], bool]
    ) -> list[tuple[int, float]]:
        load = self._load_of(unit)
        route: dict[int, float] = {}
        for near, share in use.items():
            if keep(near):
                key = (unit, near[0], near[1], load.get(near, b""))
                link = self._links.setdefault(key, len(self._links))
                route[link] = max(share, route.get(link, 0.0))
        return list(route.items())

    def call(self, unit: int, task: Call) -> Collective:
        members = self._members(unit, task.axis)
        price = self._price(unit, task)
        key = (task.name, task.axis, task.collective, task.size_bytes, members.tobytes())
        if key not in self.made:
            order = np.sort(members)
            ranks = self.pricer.ranks[self.classes.representative[order]]
            routes = [self._route(member, price.use, lambda _: True) for member in order.tolist()]
            self.made[key] = meeting(task.name, ranks, price.time_s, routes)
        return self.made[key]

    def transfer(self, unit: int, task: Transfer) -> Collective:
        sender, receiver = self.classes.class_of_rank[self._ends(unit, task)].tolist()
        price = self._price(unit, task)
        name = self._transfer_name(unit, task)
        key = (name, task.size_bytes, sender, receiver)
        if key not in self.made:
            route = self._route(sender, price.use, lambda near: near[1] != "in")
            route += self._route(receiver, price.use, lambda near: near[1] == "in")
            group = self.pricer.ranks[self.classes.representative[[sender, receiver]]]
            self.made[key] = flow(name, group, price.time_s, route)
        return self.made[key]


class _Exact(_Assembly):
    def network(self) -> Network:
        return self.pricer.cluster.network

    def call(self, unit: int, task: Call) -> Collective:
        groups = self.plan.mesh.groups[task.axis]
        row = self._row(unit, task.axis)
        key = (task.name, task.axis, task.collective, task.size_bytes, row)
        if key not in self.made:
            placed = self.pricer.ranks[groups[row]]
            self.made[key] = self.pricer.collective(call_of(task, len(placed)), placed, task.name)
        return self.made[key]

    def transfer(self, unit: int, task: Transfer) -> Collective:
        placed = self.pricer.ranks[self._ends(unit, task)]
        name = self._transfer_name(unit, task)
        key = (name, task.size_bytes, placed.tobytes())
        if key not in self.made:
            both = self.pricer.collective(call_of(task, 2), placed, name)
            self.made[key] = one_way(both)
        return self.made[key]
