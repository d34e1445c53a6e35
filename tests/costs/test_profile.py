"""Cost profiles: complete, sourced, overridable, and the limits of their formulas."""

from __future__ import annotations

import pytest

from simulator.base.errors import CalibrationError, UnitError
from simulator.costs.profile import PATH_KINDS, load_profile, profile_names
from simulator.fabric.model import LINK_KINDS


def test_profiles_are_found() -> None:
    assert {"ideal", "nccl"} <= set(profile_names())


@pytest.mark.parametrize("name", profile_names())
def test_complete_and_sourced(name: str) -> None:
    profile = load_profile(name)
    assert set(profile.efficiency) == set(LINK_KINDS)
    for path in PATH_KINDS:
        for protocol in profile.protocols:
            assert profile.alpha_s[path, protocol] >= 0
    assert all(0 < value <= 1 for value in profile.efficiency.values())
    assert profile.sources
    assert all(text.strip() for text in profile.sources.values())
    for kind in profile.efficiency:
        assert f"links.{kind}" in profile.sources


def test_ideal_costs_nothing() -> None:
    ideal = load_profile("ideal")
    assert ideal.launch_s == 0
    assert set(ideal.alpha_s.values()) == {0.0}
    assert set(ideal.efficiency.values()) == {1.0}


def test_channels_grow_with_size_and_stop_at_the_most() -> None:
    nccl = load_profile("nccl")
    # NCCL 2.21: Simple has 512 threads of 64 bytes: one channel per 32 KiB.
    assert nccl.channels_for("Simple", 0, 24) == 1
    assert nccl.channels_for("Simple", 2 * 32768, 24) == 2
    assert nccl.channels_for("Simple", 24 * 32768, 24) == 24
    assert nccl.channels_for("Simple", 2**40, 24) == 24


def test_overrides_replace_single_constants() -> None:
    nccl = load_profile("nccl")
    changed = nccl.with_overrides(
        {"links.nvlink.efficiency": "90 %", "paths.network.Simple": "20 us", "launch.time": "1 us"}
    )
    assert changed.efficiency["nvlink"] == pytest.approx(0.9)
    assert changed.alpha_s["network", "Simple"] == pytest.approx(20e-6)
    assert changed.launch_s == pytest.approx(1e-6)
    assert changed.efficiency["pcie"] == nccl.efficiency["pcie"]


@pytest.mark.parametrize("key", load_profile("nccl").keys())
def test_every_named_key_can_be_overridden(key: str) -> None:
    value = "3 us" if key.startswith(("launch", "paths")) else "0.25"
    assert load_profile("nccl").with_overrides({key: value}) != load_profile("nccl")


def test_unknown_constant_names_the_nearest() -> None:
    with pytest.raises(CalibrationError, match=r"links\.nvlink\.efficiency"):
        load_profile("nccl").with_overrides({"links.nvlnk.efficiency": "0.9"})


@pytest.mark.parametrize("value", ["1.5", "0"])
def test_share_out_of_range(value: str) -> None:
    with pytest.raises(CalibrationError, match="out of range"):
        load_profile("nccl").with_overrides({"links.nvlink.efficiency": value})


def test_time_without_unit() -> None:
    with pytest.raises(UnitError, match="no unit"):
        load_profile("nccl").with_overrides({"launch.time": "3"})


def test_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(CalibrationError, match="Did you mean 'nccl'"):
        load_profile("nccI")
