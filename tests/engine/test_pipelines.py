"""Pipelines whose edges' first steps are given: timed as if their steps were generated."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.engine import step_model
from simulator.engine.pipelines import by_first_step
from simulator.engine.step_model import StepModel

N = 31
DEPTH = 4


def tree(build, *, channels=2, pieces=40, size=1.0, shared=True, ragged=False):
    """Reduce up and broadcast down a binary tree, each channel on connections of its own.

    Heap order, the root last but one for each channel, so that channels differ; a slot's sends
    of all channels share its link out.
    """
    pairs, first, channel, routes = [], [], [], []
    for ch in range(channels):
        turned = np.roll(np.arange(N), 3 * ch)
        for child in range(1, N):
            level = int(np.log2(child + 1))
            up, down = DEPTH - level, DEPTH + level - 1
            for (a, b), lag in (((child, (child - 1) // 2), up), (((child - 1) // 2, child), down)):
                src, dst = int(turned[a]), int(turned[b])
                pairs.append((src, dst))
                routes.append([src, N + dst] if shared else [len(routes)])
                first.append(lag)
                channel.append(ch)
    conns = build.connections(pairs, routes, latency_s=0.25)
    first = np.array(first)
    count = np.full(len(first), pieces)
    if ragged:
        count[::3] -= 1
    n_steps = int((first + count).max())
    steps = []
    for k in range(n_steps):
        live = np.flatnonzero((first <= k) & (k < first + count))
        steps.append((None if len(live) == len(first) else live, size))
    part = build.stage("tree", range(len(pairs)), channel, steps)
    capacity = np.ones(len(routes) if not shared else 2 * N)
    plain = build.collective(conns, [part], N)
    told = replace(plain, stages=(replace(part, first_step=first),))
    return plain, told, capacity


def times(what, capacity):
    model = StepModel(what, (0,), capacity)
    rate = np.ones(len(what.connections.src))
    return model.duration_s(rate), model.slot_end_s(what.n_slots)


@pytest.mark.parametrize("ragged", [False, True])
def test_steps_from_first_steps_are_those_generated(build, ragged):
    plain, told, _ = tree(build, ragged=ragged)
    stage, turned = plain.stages[0], by_first_step(told.stages[0])
    for k in range(stage.n_steps):
        sent = []
        for part in (stage, turned):
            messages = part.messages(k)
            edge = np.arange(len(part.connection)) if messages.edge is None else messages.edge
            sent.append(sorted(part.connection[edge].tolist()))
        assert sent[0] == sent[1], k


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("pieces", [3, 40])
def test_first_steps_change_no_time(build, shared, ragged, pieces):
    plain, told, capacity = tree(build, shared=shared, ragged=ragged, pieces=pieces)
    expected, ends = times(plain, capacity)
    found, told_ends = times(told, capacity)
    assert found == pytest.approx(expected, rel=1e-9)
    assert told_ends == pytest.approx(ends, rel=1e-9)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_channels_apart_end_as_channels_together(build, shared, ragged, monkeypatch):
    # What large pipelines do, on a small one: every step sampled, channel after channel.
    plain, told, capacity = tree(build, channels=3, shared=shared, ragged=ragged)
    expected, ends = times(plain, capacity)
    monkeypatch.setattr(step_model, "_LARGE_EDGES", 1)
    monkeypatch.setattr(step_model, "_SAMPLES", 1000)
    found, told_ends = times(told, capacity)
    # Rates of the steps before and after the middle are by loads instead of max-min.
    assert found == pytest.approx(expected, rel=0 if not shared else 0.01, abs=1e-9)
    assert told_ends == pytest.approx(ends, rel=0.02)
