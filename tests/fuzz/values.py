"""Values that are wrong nearly everywhere, for words, YAML and JSON alike."""

from __future__ import annotations

from hypothesis import strategies as st

__all__ = ["NO_COUNTS", "garbage", "json_garbage", "odd_text"]

NO_COUNTS = (
    "",
    " ",
    "-1",
    "0",
    "nan",
    "inf",
    "-inf",
    "1.5",
    "1e99",
    "²",
    "٣",
    "x",
    "9" * 30,
    "9" * 5000,
)
"""Words of the command line that are no count of anything."""

_ODD = (
    *NO_COUNTS,
    "1e308", "1e-308", "1e999", "-0", "0x10", "1_0", "1,", ",", ",,", "1,,2", "a,b", "[]", "[1,",
    "{}", "{a: 1}", "[[1]]", "null", "~", "true", "no", "auto", "*", "&a", "*a", "!!str 1",
    "!!python/name:os.system", "1 GiB", "1 GiB/s", "1 parsec", "-5 us", "0 s", "1e400 s", "50 %",
    "-5 %", "101 %", "é", "\x1b[31mred", "\x85", "\u2028", "\u202e", "\ufeff", "'", '"', "%s",
    "$HOME", "../..", "/dev/null", "x" * 300, "ring", "dgx-h100", "kind: ring", "- 1", "a: b: c",
    "#", "|", ">",
)  # fmt: skip

odd_text = st.sampled_from(_ODD) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12
)
"""Words as a shell can give them."""

garbage = odd_text | st.integers(-(10**20), 10**20).map(str) | st.floats().map(str)
"""Values as YAML text."""

json_garbage = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 1, 2, 3, 10**9, 10**18, 10**30, 1e308, -1e308, 1.5, 1e-300])
    | st.floats()
    | st.sampled_from(["", "auto", "x", "1e9", "\x1b[31m", "é", "9" * 5000]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
"""Values in a JSON file; NaN and infinities are written as Python writes them."""
