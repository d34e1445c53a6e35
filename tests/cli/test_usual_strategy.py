"""Without a word of the strategy the first simple one that fits is taken."""

from __future__ import annotations

import pytest

SMALL = ("--node", "4xA100", "-q")


def header(out: str) -> str:
    return " ".join(out.splitlines()[:2])


def test_the_first_that_fits_is_taken_and_told(collsim) -> None:
    done = collsim("step", "--model", "llama-3-8b", "--node", "dgx-h100", "-q")
    assert "ddp needs" in done.err
    assert "data_parallel fsdp" in done.err
    assert "FSDP" in header(done.out)
    assert "memory: fits" in done.out


@pytest.mark.parametrize(
    "words",
    [
        ("--data-parallel", "ddp"),
        ("--zero", "0"),
        ("--tp", "1,2"),
        ("--framework", "torch"),
        ("--recompute", "selective"),
        ("--set", "training.bucket=50 MiB"),
    ],
)
def test_what_is_said_is_taken_as_it_is(collsim, words: tuple[str, ...]) -> None:
    done = collsim("step", "--model", "llama-2-7b", *SMALL, *words)
    assert "is taken" not in done.err
    assert "FSDP" not in header(done.out)


def test_what_fits_anyway_stays_plain(collsim) -> None:
    done = collsim("step", "--model", "gpt2", *SMALL)
    assert "is taken" not in done.err
    assert "DDP" in header(done.out)


def test_where_nothing_fits_the_plain_one_says_so(collsim) -> None:
    done = collsim("step", "--model", "llama-3.1-405b", *SMALL)
    assert "is taken" not in done.err
    assert "OUT OF MEMORY" in done.out


def test_variables_act_on_a_step(collsim) -> None:
    words = ("step", "--model", "gpt2", "--node", "dgx-h100", "-q")
    assert "NVLS" in collsim(*words).out
    assert "NVLS" not in collsim(*words, "--env", "NCCL_NVLS_ENABLE=0").out
