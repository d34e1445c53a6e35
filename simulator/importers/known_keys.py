"""Keys of other programs' configurations that importers know."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

__all__ = ["known_keys"]


@lru_cache(maxsize=8)
def known_keys(program: str) -> frozenset[str]:
    """Return the keys of one section of ``known_keys.yaml``."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = (resources.files("simulator.importers") / "known_keys.yaml").read_text("utf-8")
    return frozenset(yaml.load(text, Loader=loader)[program])
