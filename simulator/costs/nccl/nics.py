"""Which NICs the names in NCCL_IB_HCA and NCCL_SOCKET_IFNAME mean."""

from __future__ import annotations

import re

__all__ = ["chosen_nics"]


def chosen_nics(text: str, count: int) -> tuple[tuple[int, ...], list[str]]:
    """Return which of *count* NICs a list of device names means, and names without a number.

    ``^`` excludes, ``=`` demands the exact name, and without it a name is a prefix, as in NCCL
    (docs/userguide/source/env.rst).  Presets have no device names: the number at the end of a
    name is that of the NIC, and a name without number means all.

    Examples
    --------
    >>> chosen_nics("mlx5_0:1,mlx5_3", 8)[0], chosen_nics("^=mlx5_1", 4)[0]
    ((0, 3), (0, 2, 3))
    >>> chosen_nics("mlx5_1", 12)[0], chosen_nics("=mlx5_1", 12)[0], chosen_nics("mlx5", 2)[0]
    ((1, 10, 11), (1,), (0, 1))
    """
    excludes = text.startswith("^")
    body = text.removeprefix("^")
    exact = body.startswith("=")
    named: set[int] = set()
    strange: list[str] = []
    for token in filter(None, (part.strip() for part in body.removeprefix("=").split(","))):
        # mlx5 ends in a digit that belongs to the driver's name.
        number = re.search(r"(?<!mlx)(\d+)$", token.partition(":")[0])
        if number is None:
            named |= set(range(count))
        elif int(number.group(1)) >= count:
            strange.append(token)
            named |= set() if excludes else set(range(count))
        elif exact:
            named.add(int(number.group(1)))
        else:
            named |= {nic for nic in range(count) if str(nic).startswith(number.group(1))}
    kept = set(range(count)) - named if excludes else named
    return tuple(sorted(kept)), strange
