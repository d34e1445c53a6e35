"""What NCCL's messages tell of the network: kind and rate of its ports, and which ones are used."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["NetworkSeen", "NetworkTold"]

_DEVICES = re.compile(r"NET/(\w+) ?: Using ((?:\[\d+\]\S+ ?)+)")
_DEVICE = re.compile(r"\[(\d+)\]\S+?:\d+(?:/(\w+))?")
_CHOSEN = re.compile(r"Using network (\S.*?)\s*$")
_PROVIDER = re.compile(r"Selected [Pp]rovider is (\w+)")
_SPEED = re.compile(r"\bspeed=(\d{4,7})\b")
_TREE = re.compile(r"\bNET/(\d+) \([0-9a-fA-Fx]+/\d+/(\d+(?:\.\d+)?)\)|\bNET\[(\d+(?:\.\d+)?)\]")
_CHANNELS = re.compile(r"\b(\d+) coll channels")
_USED = re.compile(r"\bvia NET/[^/]+/(\d+)")

_KINDS = {"IB": "infiniband", "RoCE": "roce", "efa": "efa", "cxi": "slingshot"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTold:
    """What is known of a node's network ports; None where the log does not say."""

    kind: str | None = None
    """``infiniband``, ``roce``, ``ethernet``, ``efa`` or ``slingshot``."""
    rate_Bps: float | None = None
    """Of one port, per direction."""
    used: int | None = None
    """Ports that channels go through."""
    channels: int | None = None
    """Of collectives."""
    by: str = ""
    """The words of the log that tell the kind."""


@dataclass(slots=True)
class NetworkSeen:
    """Collects what messages say, one by one."""

    kinds: dict[int, str] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    """By kind: what told it."""
    rates: dict[int, float] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    channels: int | None = None
    chosen: str = ""

    def message(self, text: str) -> None:
        """Take what an NCCL INFO message says of the network."""
        if "via NET/" in text:
            if (match := _USED.search(text)) is not None:
                self.used.add(int(match.group(1)))
            return
        if "NET" in text or "etwork" in text or "speed=" in text:
            self._network(text)
        elif (match := _CHANNELS.search(text)) is not None:
            self.channels = int(match.group(1))

    def _network(self, text: str) -> None:
        if (match := _DEVICES.search(text)) is not None and match.group(1) != "Socket":
            for place, link in _DEVICE.findall(match.group(2)):
                if link in _KINDS:
                    self.kinds[int(place)] = _KINDS[link]
                    self.words.setdefault(_KINDS[link], match.group(0).strip())
        elif (match := _CHOSEN.search(text)) is not None:
            self.chosen = match.group(1)
        elif (match := _PROVIDER.search(text)) is not None and match.group(1) in _KINDS:
            kind = _KINDS[match.group(1)]
            self.kinds.setdefault(0, kind)
            self.words.setdefault(kind, match.group(0))
        if (match := _SPEED.search(text)) is not None:
            self.rates.setdefault(-1, int(match.group(1)) * 1e6 / 8)
        for place, rate, alone in _TREE.findall(text):
            if rate:
                self.rates[int(place)] = float(rate) * 1e9
            elif alone:
                self.rates.setdefault(-1, float(alone) * 1e9)

    def told(self) -> NetworkTold | None:
        """Return what is known; None where nothing is."""
        kinds = {self.kinds[place] for place in self.used if place in self.kinds}
        kinds = kinds or set(self.kinds.values())
        kind = kinds.pop() if len(kinds) == 1 else None
        by = self.words.get(kind or "", "")
        if kind is None and self.chosen == "Socket":
            kind, by = "ethernet", "Using network Socket"
        rates = {self.rates[place] for place in self.used if place in self.rates}
        rates = rates or set(self.rates.values())
        if kind is None and not rates and not self.used and self.channels is None:
            return None
        return NetworkTold(
            kind=kind,
            rate_Bps=rates.pop() if len(rates) == 1 else None,
            used=len(self.used) or None,
            channels=self.channels,
            by=by,
        )
