"""``import collsim`` and ``python -m collsim``: the project by its own name."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import collsim
import simulator


def test_the_public_names_are_those_of_the_simulator():
    assert collsim.__all__ == simulator.__all__
    for name in simulator.__all__:
        assert getattr(collsim, name) is getattr(simulator, name)


def test_the_module_is_the_command():
    words = [sys.executable, "-m", "collsim", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"collsim {simulator.__version__}\n")


def test_the_package_is_in_the_wheel():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    found = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {"collsim*", "simulator*", "topologies*", "validation*"} <= set(found)
