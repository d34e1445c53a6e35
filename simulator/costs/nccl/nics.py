"""Which NICs the names in NCCL_IB_HCA and NCCL_SOCKET_IFNAME mean."""

from __future__ import annotations

import re

__all__ = ["chosen_nics"]


def chosen_nics(text: str, count: int) -> tuple[tuple[int, ...], list[str]]:
    """Return which of *count* NICs a list of device names means, and names without a number.

    ``^`` excludes, ``=`` demands the exact name, and without it a name is a prefix, as in NCCL
    (docs/userguide/source/env.rst).  Presets have no device names: the number at the end of a
    name is that of the NIC, and a name without number means all.  Numbers that no NIC has (a
    DGX H100 counts its eight ports up to mlx5_11) mean as many NICs as are named, evenly spread.

    Examples
    --------
    >>> chosen_nics("mlx5_0:1,mlx5_3", 8)[0], chosen_nics("^=mlx5_1", 4)[0]
    ((0, 3), (0, 2, 3))
    >>> chosen_nics("mlx5_1", 12)[0], chosen_nics("=mlx5_1", 12)[0], chosen_nics("mlx5", 2)[0]
    ((1, 10, 11), (1,), (0, 1))
    >>> chosen_nics("mlx5_4,mlx5_5,mlx5_10,mlx5_11", 8)
    ((0, 2, 4, 6), ['mlx5_10', 'mlx5_11'])
    """
    excludes = text.startswith("^")
    body = text.removeprefix("^")
    exact = body.startswith("=")
    named: set[int] = set()
    strange: list[str] = []
    parts = (part.strip() for part in body.removeprefix("=").split(","))
    tokens = [part for part in parts if part]
    for token in tokens:
        # mlx5 ends in a digit that belongs to the driver's name.
        number = re.search(r"(?<!mlx)(\d+)$", token.partition(":")[0])
        if number is None:
            named |= set(range(count))
        elif int(number.group(1)) >= count:
            strange.append(token)
        elif exact:
            named.add(int(number.group(1)))
        else:
            named |= {nic for nic in range(count) if str(nic).startswith(number.group(1))}
    if strange and not excludes:
        most = min(len(tokens), count)
        named = {place * count // most for place in range(most)}
    kept = set(range(count)) - named if excludes else named
    return tuple(sorted(kept)), strange
