import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def build():
    """The module with the builders."""
    spec = importlib.util.spec_from_file_location(
        "engine_build", Path(__file__).with_name("build.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
