"""A table printed in nccl-tests' format is read back, whatever its numbers."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nccl_table_printer import FOOTER, header, row

from simulator.importers import ForeignFileError, bus_factor, implied_ranks
from simulator.importers.nccl_tests import read

DATA = Path(__file__).parent / "data"
SAMPLES = sorted(path.name for path in DATA.iterdir() if path.suffix in (".log", ".json"))
ELEMENT = {"float": 4, "half": 2, "int8": 1, "double": 8, "bfloat16": 2}
KINDS = {
    "all_reduce": (False, "sum", -1),
    "reduce_scatter": (True, "max", -1),
    "all_gather": (True, "none", -1),
    "broadcast": (False, "none", 1),
    "reduce": (False, "prod", 2),
}


@given(
    collective=st.sampled_from(sorted(KINDS)),
    dtype=st.sampled_from(sorted(ELEMENT)),
    n_ranks=st.integers(3, 40),
    counts=st.lists(st.integers(1, 2**31), min_size=1, max_size=8, unique=True),
    data=st.data(),
)
def test_printed_table_is_read_back(collective, dtype, n_ranks, counts, data):
    scaled, redop, root = KINDS[collective]
    factor = bus_factor(collective, n_ranks)
    times = st.floats(0.5, 9e6)
    checks = st.sampled_from([None, 0, 3])
    text, expected = f"./{collective}_perf -b 8\n" + header(n_ranks, max_bytes=2**60), []
    for count in sorted(counts):
        size = count * ELEMENT[dtype] * (n_ranks if scaled else 1)
        halves = [(data.draw(times), data.draw(checks)) for _ in range(2)]
        text += row(size, count, dtype, redop, root, halves, factor)
        expected.append((size, count, halves))
    log = read(text)
    assert log.dropped_lines == ()
    assert not [w for w in log.warnings if "printed" in str(w)]
    table = log.tables[0]
    assert (table.collective, table.n_ranks, table.dtype) == (collective, n_ranks, dtype)
    assert table.root == (None if root < 0 else root)
    assert table.n_nodes == (n_ranks + 7) // 8
    for measured, (size, count, halves) in zip(table.rows, expected, strict=True):
        assert (measured.size_bytes, measured.count) == (size, count)
        for half, (time_us, wrong) in zip(
            (measured.out_of_place, measured.in_place), halves, strict=True
        ):
            # Printed with two decimals below 100 µs, one below 10 ms, none above.
            places = 0.005 if time_us < 100 else 0.05 if time_us < 10000 else 0.5
            assert half.time_s * 1e6 == pytest.approx(time_us, rel=1e-9, abs=places * 1.001)
            assert half.wrong == wrong
            assert half.busbw_Bps == pytest.approx(size / half.time_s * factor)


@given(n_ranks=st.integers(2, 4096))
def test_implied_ranks_inverts_the_factor(n_ranks):
    for collective in ("all_reduce", "all_gather"):
        factor = bus_factor(collective, n_ranks)
        assert implied_ranks(collective, factor) == pytest.approx(n_ranks, rel=1e-9)


PIECES = [
    *(
        "1048576",
        "262144",
        "float",
        "sum",
        "-1",
        "74.78",
        "14.02",
        "N/A",
        "0",
        "1,024",
        "nan",
        "inf",
    ),
    *("\n", "#", "...", "[1,0]<stdout>:", "h:1:2 [0] NCCL INFO x", "Rank  0 Pid 1 on"),
    *("nThread 1 nGpus 8", "# size count type redop root time algbw busbw #wrong"),
]


@given(text=st.text(max_size=300) | st.lists(st.sampled_from(PIECES), max_size=60).map(" ".join))
def test_any_text_is_read_or_refused_with_our_error(text):
    try:
        log = read(text + "\n")
    except ForeignFileError as refusal:
        log = refusal
    if isinstance(log, ForeignFileError):
        assert str(log)
    else:
        assert log.tables
        assert all(table.rows for table in log.tables)


def test_footer_of_a_whole_table_raises_no_warning():
    text = header(8) + row(2**28, 2**26, "float", "sum", -1, [(2112.2, 0), (2111.8, 0)], 1.75)
    average = (2**28 / 2112.2 + 2**28 / 2111.8) / 2 / 1e3 * 1.75
    assert read(text + FOOTER.format(average=average)).warnings == ()


@given(data=st.data())
def test_damaged_real_log_is_read_or_refused_with_our_error(data):
    name = data.draw(st.sampled_from(SAMPLES))
    text = (DATA / name).read_text()[:3000]
    for _ in range(data.draw(st.integers(1, 12))):
        place = data.draw(st.integers(0, len(text)))
        gone = data.draw(st.integers(0, 15))
        new = data.draw(st.text(alphabet="0123456789.,-eN/A \n#[]", max_size=6))
        text = text[:place] + new + text[place + gone :]
    try:
        log = read(text + "\n")
    except ForeignFileError as refusal:
        log = refusal
    assert isinstance(log, ForeignFileError) or all(table.rows for table in log.tables)
