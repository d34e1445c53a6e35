"""Nothing in the documentation is invented: outputs, scenarios, Python, links, lists."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from simulator.collectives.reference import markdown
from simulator.scenario import loads
from tests.docs.console import ROOT, blocks, commands, run

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = [
    pytest.param(shown, id=f"{page.name}: {shown.command[:60]}")
    for page in PAGES
    for body in blocks(page.read_text("utf-8"))
    for shown in commands(body)
    if shown.lines and shown.command.startswith("collsim")
]


def test_there_are_outputs_to_check():
    assert len(SHOWN) >= 10


@pytest.mark.parametrize("shown", SHOWN)
def test_shown_output_is_the_real_one(shown, monkeypatch):
    """To renew: ``python tests/docs/console.py README.md docs/*.md``."""
    monkeypatch.chdir(ROOT)
    assert shown.lines == shown.renewed(run(shown.command))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scenarios_on_pages_are_scenarios(page: Path):
    text = page.read_text("utf-8")
    for body in re.findall(r"^```yaml\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        if "schema_version" in body:
            assert loads(body, name=page.name).variants


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_on_pages_does_what_it_shows(page: Path, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = page.read_text("utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(code, {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test)
    assert runner.failures == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), target


def test_the_list_of_algorithms_is_up_to_date():
    """To renew, see `simulator.collectives.reference`."""
    assert (ROOT / "docs" / "algorithms.md").read_text("utf-8") == markdown()
