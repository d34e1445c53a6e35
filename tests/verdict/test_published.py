"""Healthy published machines are not called sick; broken ones are flagged.

The whole set is counted by `validation.alarms`; here are those that are quick.
"""

from __future__ import annotations

import pytest

from simulator.verdict.check import check_table
from simulator.verdict.health import Health
from validation.alarms import one_each, set_up_of, table_of

HEALTHY = [
    "a100-80g-8-nccl219",
    "meta-a100-80g-1n8g",
    "xxrjun-c1-1n8g-h100",
    "meta-a100-80g-2n8g",
]
FAULTY = ["rtx4090-4gpu-noP2P-slow", "rtx4090-2gpu-noP2P-slow", "h200-2n8g-single-nic-tcp"]


def case_of(slug: str, *, healthy: bool):
    found = [
        case for case in one_each(healthy) if case.slug == slug and case.collective == "all_reduce"
    ]
    assert found, f"no all_reduce case of {slug}"
    return found[0]


@pytest.mark.parametrize("slug", HEALTHY)
def test_a_healthy_machine_is_not_sick(slug: str) -> None:
    case = case_of(slug, healthy=True)
    assert check_table(set_up_of(case), table_of(case)).health is Health.HEALTHY


@pytest.mark.parametrize("slug", FAULTY)
def test_a_broken_machine_is_flagged(slug: str) -> None:
    case = case_of(slug, healthy=False)
    assert check_table(set_up_of(case), table_of(case)).health is not Health.HEALTHY
