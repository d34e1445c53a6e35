"""One process that launches for several GPUs cannot make short calls faster than it launches."""

from __future__ import annotations

import pytest

from simulator.base.errors import CollsimError
from simulator.compose.run import run_resolved
from simulator.costs.profile import load_profile
from simulator.scenario.resolve import from_words


def time_s(size: str, **more: str) -> float:
    words = {
        "node": "dgx-a100",
        "collective.op": "all_reduce",
        "collective.size": size,
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    return run_resolved(from_words(words).variants[0]).rows[0].time_s


def test_short_calls_take_as_long_as_eight_launches() -> None:
    each = load_profile("nccl").host_launch_s
    assert time_s("8", costs__gpus_per_process="8") == pytest.approx(8 * each)
    assert time_s("8") < 8 * each


def test_long_calls_hide_the_launches() -> None:
    assert time_s("1G", costs__gpus_per_process="8") == time_s("1G")


@pytest.mark.parametrize(
    ("profile", "version", "message"),
    [
        ("nccl", "1.2", "NCCL 1.2.0 is not modelled"),
        ("nccl", "new", "not an NCCL version"),
        ("ideal", "2.21", "profile 'ideal' has no versions"),
    ],
)
def test_versions_that_mean_nothing_are_refused(profile: str, version: str, message: str) -> None:
    with pytest.raises(CollsimError, match=message) as caught:
        time_s("8", costs__profile=profile, costs__version=version)
    assert caught.value.problems[0].key == "costs.version"


def test_the_version_decides_the_channels() -> None:
    # Up to 2.19 the chunks of trees shrink; 2.12 has other latencies: some size chooses otherwise.
    sizes = [str(2**k) for k in range(10, 28)]
    new = [time_s(size, costs__version="2.27") for size in sizes]
    old = [time_s(size, costs__version="2.12") for size in sizes]
    assert new != old
