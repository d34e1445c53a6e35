"""README's second command needs no extra but `test`: what is skipped takes no other test along."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def imported(tree: ast.Module) -> set[str]:
    """Return the modules of tests that a module imports at its top."""
    return {
        node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tests.")
    }


def skips_itself(tree: ast.Module) -> bool:
    """Return whether a module skips itself as a whole where a package is missing."""
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "importorskip"
        for node in tree.body
        if not isinstance(node, ast.FunctionDef | ast.ClassDef)
        for call in ast.walk(node)
    )


def test_no_module_imports_from_one_that_may_be_skipped() -> None:
    trees = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text())
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }
    skipped = {name for name, tree in trees.items() if skips_itself(tree)}
    assert skipped, "the measurements' tests skip themselves without torch"
    wrong = {
        f"{name} imports from {other}"
        for name, tree in trees.items()
        for other in imported(tree) & skipped
    }
    assert not wrong
