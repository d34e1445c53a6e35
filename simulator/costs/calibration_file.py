"""Files of calibrated profiles: read, checked against the profile that they extend.

A file names the profile it extends and gives the constants that differ, in the sections and units
of that profile; ``discrepancy``, ``bands`` and ``fitted`` are what ``collsim fit`` adds.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from simulator.base.errors import CalibrationError, CollsimError, Problem, nearest
from simulator.base.limits import MOST_TIME_S
from simulator.base.units import exact_time, parse_time
from simulator.costs.calibration import Calibration, Curve, Measured, table_key, way_key
from simulator.costs.calibration_names import ALGORITHMS, COLLECTIVES
from simulator.costs.sections import below, merged, nested

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "constants_of",
    "identity_of",
    "is_profile_file",
    "merged",
    "read_calibration",
]

_TEXTS = ("name", "summary", "reference", "extends")
_OURS = ("discrepancy", "bands", "fitted")
_NOT_CONSTANTS = ("algorithms", "channels", "connections", "rules", "cpu", "tuning")
_RATIOS = re.compile(r".*(launch|alpha|closing)_share")
"""Constants that may be above one; rates have a limit of their own."""
_MOST_RATIO, _MOST_GBps, _MOST_LOG, _MOST_OCTAVE = 100.0, 1e6, 5.0, 64
_MOST_BYTES = 1 << 20
_VERSION = "costs.version"
_TABLE = "table of fitted.ranges"


def is_profile_file(name: str) -> bool:
    """Return whether a profile is given as a file.

    Examples
    --------
    >>> is_profile_file("mycluster.yaml"), is_profile_file("nccl")
    (True, False)
    """
    return name.endswith((".yaml", ".yml")) or "/" in name


def constants_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constants of a shipped profile's file by dotted key, as they are written."""
    found: dict[str, Any] = {}

    def collect(part: Mapping[str, Any], path: str) -> None:
        for key, value in part.items():
            if key in ("source", "like", "threads", "bytes_per_thread"):
                continue
            here = f"{path}.{key}" if path else key
            if isinstance(value, Mapping):
                collect(value, here)
            elif not isinstance(value, list | bool):
                found[here] = value

    skipped = {*_TEXTS, *_OURS, *_NOT_CONSTANTS}
    collect({key: value for key, value in data.items() if key not in skipped}, "")
    return found


def identity_of(data: Mapping[str, Any]) -> str:
    """Return a short hash of the constants of a shipped profile's file."""
    text = json.dumps(sorted((key, str(value)) for key, value in constants_of(data).items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_calibration(
    path: str, names: Sequence[str], data_of: Callable[[str], Mapping[str, Any]]
) -> _Read:
    """Return the contents of a calibrated profile's file.

    Parameters
    ----------
    path
        Of the file.
    names
        Of the profiles that it may extend.
    data_of
        Returns the data of one of them.

    Raises
    ------
    CalibrationError
        Everything that is wrong with the file, with lines and dotted keys.
    """
    reader = _Reader(path)
    found = reader.read(names, data_of)
    if reader.problems or found is None:
        raise CalibrationError(sorted(reader.problems, key=lambda problem: problem.line or 0))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    data: dict[str, Any]
    """The base's data with the file's constants laid over."""
    calibration: Calibration | None
    """None: the file holds constants only."""
    moved: tuple[str, ...]
    """Dotted keys of the constants that the file gives."""
    sha256: str
    """Of the file."""


@dataclass(slots=True)
class _Reader:
    path: str
    problems: list[Problem] = field(default_factory=list)
    sha256: str = ""

    def refuse(
        self,
        node: yaml.Node | None,
        key: str,
        message: str,
        allowed: str = "",
        suggestion: str | None = None,
    ) -> None:
        line = None if node is None else node.start_mark.line + 1
        self.problems.append(
            Problem(
                file=self.path,
                line=line,
                key=key,
                message=message,
                allowed=allowed,
                suggestion=suggestion,
            )
        )

    def read(
        self, names: Sequence[str], data_of: Callable[[str], Mapping[str, Any]]
    ) -> _Read | None:
        root = self._root()
        if root is None:
            return None
        top = dict(self._pairs(root, ""))
        base = self._base(root, top, names)
        if base is None:
            return None
        for key in _TEXTS:
            if key in top and not isinstance(top[key], yaml.ScalarNode):
                self.refuse(top[key], key, "is no text", "a text")
        data = data_of(base)
        known = constants_of(data)
        moved: dict[str, Any] = {}
        for key, node in top.items():
            if key == "tuning":
                self._tuning(node, data, moved)
            elif key not in (*_TEXTS, *_OURS):
                self._constants(node, key, known, data, moved)
        self._idle(top, data, moved)
        calibration = self._calibration(root, top, base, data)
        over = nested(moved)
        for key in ("summary", "reference"):
            if isinstance(top.get(key), yaml.ScalarNode):
                over[key] = top[key].value
        return _Read(
            data=merged(data, over),
            calibration=calibration,
            moved=tuple(moved),
            sha256=self.sha256,
        )

    def _root(self) -> yaml.MappingNode | None:
        allowed = "the YAML file of a profile, such as `collsim fit --out` writes"
        path = Path(self.path)
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                what = "a folder" if path.is_dir() else "no regular file"
                self.refuse(None, "", f"cannot read: is {what}", allowed)
                return None
            with path.open("rb") as file:
                raw = file.read(_MOST_BYTES + 1)
            if len(raw) > _MOST_BYTES:
                self.refuse(None, "", "has more than 1 MiB", allowed)
                return None
            self.sha256 = hashlib.sha256(raw).hexdigest()
            text = raw.decode("utf-8")
        except OSError as error:
            self.refuse(None, "", f"cannot read: {error.strerror}", allowed)
            return None
        except UnicodeDecodeError:
            self.refuse(None, "", "is not text", allowed)
            return None
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            root = yaml.compose(text, Loader=loader)
        except (yaml.YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            reason = getattr(error, "problem", None) or "unreadable"
            self.problems.append(
                Problem(
                    file=self.path,
                    line=None if mark is None else mark.line + 1,
                    message=f"is not YAML: {reason}",
                )
            )
            return None
        if not isinstance(root, yaml.MappingNode):
            self.refuse(root, "", "holds no sections", allowed)
            return None
        return root

    def _pairs(self, node: yaml.Node, path: str) -> Iterator[tuple[str, yaml.Node]]:
        """Generate the entries of a section; keys twice and what is no section are problems."""
        if not isinstance(node, yaml.MappingNode):
            self.refuse(node, path, "is no section", "keys with values below it")
            return
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            here = f"{path}.{name}" if path else name
            if name in seen:
                self.refuse(key, here, "stands here twice", "each key once")
                continue
            seen.add(name)
            yield name, value

    def _base(
        self, root: yaml.Node, top: Mapping[str, yaml.Node], names: Sequence[str]
    ) -> str | None:
        node = top.get("extends")
        allowed = f"a shipped profile: {', '.join(names)}"
        if not isinstance(node, yaml.ScalarNode):
            self.refuse(node or root, "extends", "is missing", allowed)
            return None
        if node.value not in names:
            message = f"unknown profile {node.value!r}"
            self.refuse(node, "extends", message, allowed, nearest(node.value, names))
            return None
        return str(node.value)

    def _constants(
        self,
        node: yaml.Node,
        path: str,
        known: Mapping[str, Any],
        data: Mapping[str, Any],
        moved: dict[str, Any],
    ) -> None:
        if path in known:
            value = self._constant(node, path, known[path])
            if value is not None:
                moved[path] = value
            return
        if not any(key.startswith(f"{path}.") for key in known):
            top = [*data, *_OURS] if "." not in path else list(known)
            close = nearest(path, top)
            allowed = f"constants of the profile {data['name']}, as in {data['name']}.yaml"
            self.refuse(node, path, "unknown key", allowed, close)
            return
        for key, value in self._pairs(node, path):
            if key != "source":
                self._constants(value, f"{path}.{key}", known, data, moved)

    def _constant(self, node: yaml.Node, path: str, shipped: Any) -> Any:
        """Return a constant as the profile's file has it; None: it is wrong."""
        if not isinstance(node, yaml.ScalarNode):
            self.refuse(node, path, "is no number", f"one value, such as {shipped}")
            return None
        if isinstance(shipped, str):
            try:
                value_s = parse_time(node.value)
            except CollsimError as error:
                for found in error.problems:
                    self.refuse(node, path, found.message, found.allowed, found.suggestion)
                return None
            if value_s > MOST_TIME_S:
                self.refuse(
                    node, path, f"{node.value} is too large", f"0 s … {exact_time(MOST_TIME_S)}"
                )
                return None
            return node.value
        is_rate = "_GBps" in path
        most = _MOST_GBps if is_rate else _MOST_RATIO if _RATIOS.fullmatch(path) else 1.0
        unit = "GB/s, without a unit" if is_rate else "a share of one, without a unit"
        value = self._number(node, path, f"0 < number ≤ {most:g}, {unit}")
        if value is None:
            return None
        if not 0 < value <= most:
            self.refuse(node, path, f"{node.value} is out of range", f"0 < number ≤ {most:g}")
            return None
        return value

    def _number(self, node: yaml.Node, path: str, allowed: str) -> float | None:
        try:
            value = float(node.value) if isinstance(node, yaml.ScalarNode) else math.nan
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            shown = node.value if isinstance(node, yaml.ScalarNode) else "a section or list"
            self.refuse(node, path, f"{shown!r} is not a number", allowed)
            return None
        return value

    def _idle(
        self, top: Mapping[str, yaml.Node], data: Mapping[str, Any], moved: Mapping[str, Any]
    ) -> None:
        """Refuse an efficiency of links that every GPU generation has for itself."""
        for key, value in moved.items():
            words = key.split(".")
            if words[0] != "links" or words[-1] != "efficiency":
                continue
            own = [
                f"generations.{name}.links.{words[1]}"
                for name, entry in data.get("generations", {}).items()
                if words[1] in entry.get("links", {})
            ]
            if own and value != float(data["links"][words[1]]["efficiency"]):
                node = below(top["links"], words[1:])
                message = "changes nothing: GPU generations have their own"
                self.refuse(node, key, message, ", ".join(own))

    def _tuning(self, node: yaml.Node, data: Mapping[str, Any], moved: dict[str, Any]) -> None:
        # Only files that name a version need the library's tables.
        from simulator.costs.nccl.version import NcclVersion, nearest_supported

        for key, value in self._pairs(node, "tuning"):
            if key == "version" and isinstance(value, yaml.ScalarNode) and "tuning" in data:
                try:
                    nearest_supported(NcclVersion.parse(str(value.value)))
                except CollsimError as error:
                    for found in error.problems:
                        self.refuse(value, "tuning.version", found.message, found.allowed)
                    continue
                moved["tuning.version"] = value.value
            else:
                self.refuse(value, f"tuning.{key}", "unknown key", "version, of NCCL's profile")

    # -- what a fit adds ------------------------------------------------------------------------

    def _calibration(
        self,
        root: yaml.Node,
        top: Mapping[str, yaml.Node],
        base: str,
        data: Mapping[str, Any],
    ) -> Calibration | None:
        if not any(key in top for key in _OURS):
            return None
        if "fitted" not in top:
            self.refuse(root, "fitted", "is missing", "what the discrepancy and bands rest on")
            return None
        fitted = dict(self._pairs(top["fitted"], "fitted"))
        before = len(self.problems)
        texts = {
            key: self._text(fitted.get(key), f"fitted.{key}", top["fitted"])
            for key in ("node", "base_identity")
        }
        names = [way_key(a, protocol) for a in ALGORITHMS for protocol in data["protocols"]]
        measured = self._measured(fitted.get("ranges"), top["fitted"], names)
        keys = [table_key(entry.collective, entry.ranks, entry.nodes) for entry in measured]
        common, ways, tables = self._discrepancy(top.get("discrepancy"), names, keys)
        bands = self._bands(top.get("bands"), keys)
        if len(self.problems) > before:
            return None
        name = top.get("name")
        return Calibration(
            name=name.value if isinstance(name, yaml.ScalarNode) else Path(self.path).stem,
            file=self.path,
            base=base,
            base_identity=texts["base_identity"],
            base_now=identity_of(data),
            node=texts["node"],
            measured=measured,
            common=common,
            ways=ways,
            tables=tables,
            bands=bands,
        )

    def _text(self, node: yaml.Node | None, path: str, section: yaml.Node) -> str:
        if isinstance(node, yaml.ScalarNode) and node.value:
            return str(node.value)
        self.refuse(node or section, path, "is missing", "a text")
        return ""

    def _measured(
        self, node: yaml.Node | None, section: yaml.Node, names: Sequence[str]
    ) -> tuple[Measured, ...]:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            allowed = "a list of collective, ranks, nodes, sizes_bytes: [least, most]"
            self.refuse(node or section, "fitted.ranges", "is missing or empty", allowed)
            return ()
        found: list[Measured] = []
        for index, entry in enumerate(node.value):
            path = f"fitted.ranges[{index}]"
            items = dict(self._pairs(entry, path))
            collective = self._text(items.get("collective"), f"{path}.collective", entry)
            if collective:
                where = items["collective"]
                self._known(where, f"{path}.collective", collective, COLLECTIVES, "collective")
            ranks = self._count(items.get("ranks"), f"{path}.ranks", entry)
            nodes = self._count(items.get("nodes"), f"{path}.nodes", entry)
            ends = items.get("sizes_bytes")
            sizes = self._list(ends, f"{path}.sizes_bytes") if ends is not None else []
            if len(sizes) != 2 or not 0 < sizes[0] <= sizes[1]:
                self.refuse(
                    ends or entry, f"{path}.sizes_bytes", "is no range", "[least, most] in bytes"
                )
                continue
            found.append(
                Measured(
                    collective=collective,
                    ranks=ranks,
                    nodes=nodes,
                    sizes_bytes=(int(sizes[0]), int(sizes[1])),
                    ways=self._ways(items.get("ways"), f"{path}.ways", names),
                    settings=self._settings(items.get("settings"), f"{path}.settings"),
                )
            )
        return tuple(found)

    def _ways(
        self, node: yaml.Node | None, path: str, names: Sequence[str]
    ) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for name, ends in () if node is None else self._pairs(node, path):
            self._known(ends, f"{path}.{name}", name, names, "algorithm and protocol")
            sizes = self._list(ends, f"{path}.{name}")
            if len(sizes) == 2 and 0 < sizes[0] <= sizes[1]:
                found[name] = int(sizes[0]), int(sizes[1])
            else:
                self.refuse(ends, f"{path}.{name}", "is no range", "[least, most] in bytes")
        return found

    def _settings(self, node: yaml.Node | None, path: str) -> dict[str, str] | None:
        if node is None:
            return None
        found = {
            key: self._text(value, f"{path}.{key}", node) for key, value in self._pairs(node, path)
        }
        if found.get(_VERSION):
            from simulator.costs.nccl.version import plain_version

            found[_VERSION] = plain_version(found[_VERSION])
        return found

    def _known(
        self, node: yaml.Node, path: str, name: str, known: Sequence[str], what: str
    ) -> None:
        if name not in known:
            allowed = ", ".join(known) if len(known) < 12 else f"such as {known[0]}"
            self.refuse(node, path, f"unknown {what} {name!r}", allowed, nearest(name, known))

    def _count(
        self,
        node: yaml.Node | None,
        path: str,
        entry: yaml.Node,
        least: int = 1,
        most: float = math.inf,
    ) -> int:
        end = "" if most == math.inf else f" … {most:g}"
        allowed = f"a whole number, {least}{end}" if end else f"a whole number from {least} on"
        try:
            text = node.value if isinstance(node, yaml.ScalarNode) else ""
            value = int(text) if text.isascii() and len(text) < 20 else None
        except ValueError:
            value = None
        if value is None:
            self.refuse(node or entry, path, "is no whole number", allowed)
            return least
        if not least <= value <= most:
            self.refuse(node, path, f"{value} is out of range", allowed)
            return least
        return value

    def _list(self, node: yaml.Node, path: str) -> list[float]:
        if not isinstance(node, yaml.SequenceNode):
            self.refuse(node, path, "is no list", "a list of numbers")
            return []
        values = [self._number(item, path, "a list of numbers") for item in node.value]
        return [value for value in values if value is not None]

    def _discrepancy(
        self, node: yaml.Node | None, ways: Sequence[str], keys: Sequence[str]
    ) -> tuple[Curve, dict[str, Curve], dict[str, Curve]]:
        none = Curve(0, ())
        if node is None:
            return none, {}, {}
        sections = dict(self._pairs(node, "discrepancy"))
        names = ("first_octave", "common", "ways", "tables", "source")
        for key, value in sections.items():
            if key not in names:
                path = f"discrepancy.{key}"
                self.refuse(value, path, "unknown key", ", ".join(names), nearest(key, names))
        octave = self._count(
            sections.get("first_octave"), "discrepancy.first_octave", node, 0, _MOST_OCTAVE - 1
        )
        lengths: dict[int, str] = {}

        def curve(part: yaml.Node, path: str) -> Curve:
            values = self._list(part, path)
            lengths.setdefault(len(values), path)
            first = next(iter(lengths))
            if len(values) != first:
                self.refuse(
                    part, path, f"has {len(values)} values", f"{first}, as {lengths[first]}"
                )
            if octave + len(values) > _MOST_OCTAVE:
                self.refuse(part, path, f"{len(values)} values", "octaves of sizes below 2^64 B")
            if any(abs(value) > _MOST_LOG for value in values):
                self.refuse(
                    part,
                    path,
                    "a value is out of range",
                    f"logs of factors, −{_MOST_LOG:g} … {_MOST_LOG:g}",
                )
            return Curve(octave, tuple(values))

        def curves(key: str, known: Sequence[str], what: str) -> dict[str, Curve]:
            part = sections.get(key)
            path = f"discrepancy.{key}"
            found: dict[str, Curve] = {}
            for name, value in () if part is None else self._pairs(part, path):
                self._known(value, f"{path}.{name}", name, known, what)
                found[name] = curve(value, f"{path}.{name}")
            return found

        common = sections.get("common")
        return (
            none if common is None else curve(common, "discrepancy.common"),
            curves("ways", ways, "algorithm and protocol"),
            curves("tables", keys, _TABLE),
        )

    def _bands(
        self, node: yaml.Node | None, keys: Sequence[str]
    ) -> dict[str, tuple[tuple[float, float], ...]]:
        found: dict[str, tuple[tuple[float, float], ...]] = {}
        sections = {} if node is None else dict(self._pairs(node, "bands"))
        for key, value in sections.items():
            if key not in ("tables", "source"):
                self.refuse(value, f"bands.{key}", "unknown key", "tables, source")
        tables = sections.get("tables")
        for name, rows in () if tables is None else self._pairs(tables, "bands.tables"):
            path = f"bands.tables.{name}"
            self._known(rows, path, name, [*keys, "other"], _TABLE)
            pairs = rows.value if isinstance(rows, yaml.SequenceNode) else []
            listed = [
                self._list(row, path) if isinstance(row, yaml.SequenceNode) else [] for row in pairs
            ]
            if not listed or any(
                len(row) != 2 or row[0] <= 0 or not 0 < row[1] <= _MOST_LOG for row in listed
            ):
                allowed = f"rows of [largest size in bytes, half width 0 … {_MOST_LOG:g}]"
                self.refuse(rows, path, "is no band", allowed)
                continue
            found[name] = tuple((row[0], row[1]) for row in listed)
        return found
