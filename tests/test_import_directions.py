"""The house's arrows: every import inside the project is parsed and checked against the plan."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Room → rooms it may import.  `base` is open to everyone; a room may import itself.
MAY_USE = {
    "simulator.base": set(),
    "simulator.fabric": set(),
    "simulator.engine": {"simulator.fabric"},
    "simulator.collectives": set(),
    "simulator.costs": set(),
    "simulator.models": set(),
    "simulator.compute": {"simulator.models"},
    "simulator.importers": {"simulator.fabric", "simulator.models", "simulator.training"},
    "simulator.training": {"simulator.collectives", "simulator.compute", "simulator.models"},
    "simulator.results": set(),
    "simulator.scenario": {
        "simulator.fabric",
        "simulator.collectives",
        "simulator.costs",
        "simulator.models",
        "simulator.training",
        "topologies",
    },
    "topologies": {"simulator.fabric"},
    "simulator.compose": {
        "simulator.fabric",
        "simulator.engine",
        "simulator.collectives",
        "simulator.costs",
        "simulator.scenario",
        "simulator.results",
        "simulator.compute",
        "simulator.models",
        "simulator.training",
        "simulator.importers",
        "topologies",
    },
    "simulator.verdict": {
        "simulator.compose",
        "simulator.fabric",
        "simulator.scenario",
        "simulator.results",
        "simulator.importers",
        "topologies",
    },
    "simulator": {
        "simulator.compose",
        "simulator.fabric",
        "simulator.engine",
        "simulator.collectives",
        "simulator.costs",
        "simulator.scenario",
        "simulator.results",
        "topologies",
    },
    "simulator.cli": {
        "simulator",
        "simulator.compute",
        "simulator.models",
        "simulator.training",
        "simulator.compose",
        "simulator.collectives",
        "simulator.costs",
        "simulator.fabric",
        "simulator.scenario",
        "simulator.results",
        "simulator.importers",
        "simulator.verdict",
        "topologies",
        "validation",
    },
    "collsim": {"simulator", "simulator.cli"},
    "validation": {
        "simulator",
        "simulator.compute",
        "simulator.models",
        "simulator.training",
        "simulator.collectives",
        "simulator.compose",
        "simulator.costs",
        "simulator.engine",
        "simulator.fabric",
        "simulator.importers",
        "simulator.results",
        "simulator.scenario",
        "simulator.verdict",
        "topologies",
    },
}

# Third-party packages that belong to one place.
ONLY_IN = {
    "simpy": ("simulator/engine/",),
    "matplotlib": ("simulator/results/plots",),
    "torch": ("validation/",),
    "typer": ("simulator/cli/",),
}


def sources() -> list[Path]:
    return [
        path
        for folder in ("collsim", "simulator", "topologies", "validation")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def room_of(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] in ("collsim", "topologies", "validation"):
        return parts[0]
    if parts[0] != "simulator":
        return None
    candidate = ".".join(parts[:2])
    return candidate if candidate in MAY_USE else "simulator"


def imports(path: Path) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [(node.lineno, node.module)]
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def module_of(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def violations(path: Path) -> list[str]:
    own = room_of(module_of(path))
    assert own is not None, f"{path} is in no room"
    bad: list[str] = []
    for line, name in imports(path):
        package = name.split(".")[0]
        place = path.relative_to(ROOT).as_posix()
        if package in ONLY_IN and not place.startswith(ONLY_IN[package]):
            bad.append(f"{place}:{line}: {package} belongs to {ONLY_IN[package][0]}")
        target = room_of(name)
        if target is None or target in (own, "simulator.base"):
            continue
        if target == "simulator" and name in ("simulator", "simulator.__version__"):
            continue
        if target not in MAY_USE[own]:
            bad.append(f"{place}:{line}: {own} may not import {name}")
    return bad


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_only_the_planned_arrows(path: Path) -> None:
    assert violations(path) == []


def test_a_forbidden_arrow_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The check must be able to fail: base importing the engine, costs importing simpy.
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    folder = tmp_path / "simulator" / "base"
    folder.mkdir(parents=True)
    bad = folder / "bad.py"
    bad.write_text("import simpy\nfrom simulator.engine import traffic\n")
    assert len(violations(bad)) >= 2


def test_sources_are_found() -> None:
    assert len(sources()) > 20
