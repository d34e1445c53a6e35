"""Quantities are read with their unit, or refused with a clear word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.base.errors import UnitError
from simulator.base.units import (
    exact_rate,
    exact_size,
    exact_time,
    format_rate,
    format_size,
    format_time,
    parse_fraction,
    parse_rate,
    parse_size,
    parse_time,
)

finite = st.floats(min_value=1e-15, max_value=1e18, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8 B", 8),
        ("1K", 1024),  # nccl-tests' suffixes are powers of 1024
        ("25M", 25 * 2**20),
        ("1g", 2**30),
        ("25 MiB", 25 * 2**20),
        ("25 MB", 25 * 10**6),
        ("2.5 kB", 2500),
        ("17_179_869_184 B", 2**34),
        ("1e6 B", 10**6),
        ("4 TiB", 2**42),
    ],
)
def test_sizes(text, size_bytes):
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "rate_Bps"),
    [
        ("400 Gbit/s", 50e9),
        ("400Gbps", 50e9),
        ("400 Gb/s", 50e9),
        ("400 GBps", 400e9),
        ("50 GB/s", 50e9),
        ("50 GiB/s", 50 * 2**30),
        ("100 Mbit/s", 12.5e6),
        ("1 Tbit/s", 125e9),
    ],
)
def test_rates_tell_bits_from_bytes(text, rate_Bps):
    assert parse_rate(text) == rate_Bps


@pytest.mark.parametrize(
    ("text", "time_s"),
    [("2.5 us", 2.5e-6), ("2.5 µs", 2.5e-6), ("1 min", 60), ("0 s", 0), ("3 ns", 3e-9)],
)
def test_times(text, time_s):
    assert parse_time(text) == time_s


@pytest.mark.parametrize(
    ("parse", "text", "words"),
    [
        (parse_size, "400", "'400' has no unit"),
        (parse_size, 400, "400 has no unit"),
        (parse_size, "0 B", "'0 B' is not greater than zero"),
        (parse_size, "-1 B", "'-1 B' is not greater than zero"),
        (parse_size, "1.5 B", "'1.5 B' is not a whole number of bytes"),
        (parse_size, "nan B", "'nan B' is not finite"),
        (parse_size, "1e999 B", "'1e999 B' is not finite"),
        (parse_rate, "1e308 GB/s", "'1e308 GB/s' is not finite"),
        (parse_rate, "1e-400 GB/s", "'1e-400 GB/s' is not greater than zero"),
        (parse_size, "much", "'much' is not a size"),
        (parse_size, "", "'' is not a size"),
        (parse_size, "8 b", "'8 b' has the unknown unit 'b'"),
        (parse_rate, "400", "'400' has no unit"),
        (parse_rate, "0 GB/s", "'0 GB/s' is not greater than zero"),
        (parse_rate, "inf GB/s", "'inf GB/s' is not finite"),
        (parse_rate, "400 G", "'400 G' has the unknown unit 'G'"),
        (parse_time, "5", "'5' has no unit"),
        (parse_time, "-5 us", "'-5 us' is negative"),
        (parse_time, "5 m", "'5 m' has the unknown unit 'm'"),
        (parse_fraction, "half", "'half' is not a fraction"),
        (parse_fraction, "-1", "'-1' is negative"),
        (parse_fraction, "nan", "'nan' is not finite"),
    ],
)
def test_refusals(parse, text, words):
    with pytest.raises(UnitError) as found:
        parse(text)
    assert found.value.problems[0].message == words


def test_zero_and_bare_numbers_only_where_asked_for():
    assert parse_size("0 B", zero=True) == 0
    assert parse_size("8", bare=True) == 8
    with pytest.raises(UnitError, match="not greater than zero"):
        parse_time("0 s", zero=False)


@pytest.mark.parametrize("unit", ["gbps", "gb/s", "GBPS", "mbps"])
def test_case_that_decides_between_bits_and_bytes_names_both(unit):
    with pytest.raises(UnitError) as found:
        parse_rate(f"400 {unit}")
    problem = found.value.problems[0]
    assert "ambiguous" in problem.message
    assert "(bits)" in problem.allowed
    assert "(bytes)" in problem.allowed
    assert problem.suggestion is None


def test_case_that_decides_nothing_is_suggested():
    with pytest.raises(UnitError) as found:
        parse_size("5 mib")
    assert found.value.problems[0].suggestion == "MiB"


def test_a_fraction_is_a_number_or_percent():
    assert parse_fraction("50 %") == 0.5
    assert parse_fraction(0.25) == 0.25


@given(finite)
def test_exact_time_reads_back(value):
    assert parse_time(exact_time(value)) == value


@given(finite)
def test_exact_rate_reads_back(value):
    assert parse_rate(exact_rate(value)) == value


@given(st.integers(min_value=0, max_value=2**60))
def test_exact_size_reads_back(value):
    assert parse_size(exact_size(value), zero=True) == value


def test_short_forms_for_people():
    assert format_size(26214400) == "25 MiB"
    assert format_rate(50e9) == "50 GB/s (400 Gbit/s)"
    assert format_time(2.5e-6) == "2.5 us"
    assert format_time(3e-10) == "0.3 ns"
