"""Variables of all libraries: whose they are, what they may be, and the page about them."""

from pathlib import Path

import pytest

from simulator.base.errors import ScenarioError
from simulator.costs.nccl import NcclVersion
from simulator.costs.variables import LIBRARIES, library_variables, markdown, parse_variables
from simulator.fabric.options import RoutingOptions

V = NcclVersion(2, 23)
DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date() -> None:
    """To make it again, see `simulator.costs.variables`."""
    assert (DOCS / "environment.md").read_text("utf-8") == markdown()


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_acting_variable_names_what_it_changes(library: str) -> None:
    keys = {f"routing.{name}" for name in RoutingOptions.__dataclass_fields__}
    for name, variable in library_variables(library).items():
        assert variable.effect in ("modelled", "none", "plan", "unknown"), name
        assert variable.note, name
        if variable.effect != "modelled":
            continue
        assert variable.acts, name
        if variable.acts.startswith("routing."):
            assert variable.acts in keys, name


def test_a_variable_of_another_library_is_told_from_an_unknown_one() -> None:
    warnings = parse_variables(
        {"UCX_TLS": "tcp", "UCX_TSL": "tcp", "HOME": "/"}, "gloo", V
    ).warnings
    assert warnings[0] == "UCX_TLS belongs to mpi: no effect with gloo"
    assert warnings[1].startswith("UCX_TSL is not known.")
    assert parse_variables({"UCX_TSL": "tcp"}, "mpi", V).warnings == (
        "UCX_TSL is not known. Did you mean 'UCX_TLS'?",
    )


def test_rccl_reads_the_variables_of_nccl_and_its_own() -> None:
    parsed = parse_variables({"NCCL_P2P_DISABLE": 1, "RCCL_MSCCL_ENABLE": 0}, "rccl", V)
    assert parsed.integer("NCCL_P2P_DISABLE", 0) == 1
    assert parsed.warnings == ("RCCL_MSCCL_ENABLE is not modelled: MSCCL's own schedules",)


def test_bad_values_of_all_kinds_are_refused_together() -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_variables(
            {
                "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "rign",
                "UCX_MAX_RNDV_RAILS": 0,
                "MPICH_GPU_SUPPORT_ENABLED": "yes",
            },
            "mpich",
            V,
        )
    text = str(caught.value)
    assert len(caught.value.problems) == 3
    assert "Did you mean 'ring'?" in text
    assert "a whole number ≥ 1 and ≤ 16" in text


def test_rccl_has_twice_the_channels_of_nccl() -> None:
    # ROCm/rccl src/include/device.h MAXCHANNELS 128; its README proposes 112 for MI300X.
    for name in ("NCCL_MIN_NCHANNELS", "NCCL_MAX_CTAS"):
        assert parse_variables({name: 112}, "rccl", V).values[name.replace("CTAS", "NCHANNELS")]
        with pytest.raises(ScenarioError, match="112 is outside"):
            parse_variables({name: 112}, "nccl", V)
    with pytest.raises(ScenarioError, match="129 is outside"):
        parse_variables({"NCCL_MIN_NCHANNELS": 129}, "rccl", V)
