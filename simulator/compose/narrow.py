"""Variables that leave a library fewer algorithms, protocols, channels or threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulator.base.errors import ScenarioError
from simulator.compose.applied import State
from simulator.costs.profile import CostProfile
from simulator.costs.variables import Parsed

__all__ = ["narrowed", "slower_threads"]

_THREADS = {"NCCL_NTHREADS": (("Simple", "LL"), 512), "NCCL_LL128_NTHREADS": (("LL128",), 640)}


def slower_threads(state: State, profile: CostProfile, parsed: Parsed) -> CostProfile:
    """Return a profile whose channels copy with fewer threads.

    A block's rate is taken as in proportion to its threads, up to those of the default: it is
    limited by the loads that its threads have on their way.  Weak: no measurement behind it.
    """
    channel_Bps = dict(profile.channel_Bps)
    for name, (protocols, usual) in _THREADS.items():
        asked = parsed.values.get(name)
        if asked is None:
            continue
        if asked >= usual:
            state.idle(f"{name}={asked}", "NCCL takes as many by itself")
            continue
        for key in channel_Bps:
            if key[1] in protocols:
                channel_Bps[key] *= asked / usual
        state.notes.append(f"{name}={asked}: channels of {', '.join(protocols)} copy slower")
    return replace(profile, channel_Bps=channel_Bps)


def narrowed(profile: CostProfile, parsed: Parsed) -> CostProfile:
    """Return a profile in which only the algorithms, protocols and channels asked for are left."""
    ours = {"ring": "ring", "tree": "double_binary_tree"}
    theirs = {name: key for key, name in ours.items()}
    candidates = {
        collective: tuple(
            name
            for name in names
            if name not in theirs or parsed.nccl.allows("NCCL_ALGO", collective, theirs[name])
        )
        for collective, names in profile.candidates.items()
    }
    empty = [key for key, names in candidates.items() if not names and profile.candidates[key]]
    if "all_reduce" in empty:
        raise ScenarioError("NCCL_ALGO leaves no algorithm of all_reduce")
    # What a variable cannot forbid (a collective with one algorithm) stays.
    candidates |= {key: profile.candidates[key] for key in empty}
    protocols = {
        name: protocol
        for name, protocol in profile.protocols.items()
        if parsed.nccl.allows("NCCL_PROTO", "all_reduce", name)
    }
    if not protocols:
        raise ScenarioError("NCCL_PROTO leaves no protocol")
    least, most = (parsed.values.get(f"NCCL_{x}_NCHANNELS") for x in ("MIN", "MAX"))

    def clamped(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {key: clamped(value) for key, value in entry.items()}
        if not isinstance(entry, int):
            return entry
        return max(min(entry, most or entry), least or 0)

    table = {key: clamped(entry) for key, entry in profile.channel_table.items()}
    return replace(profile, candidates=candidates, protocols=protocols, channel_table=table)
