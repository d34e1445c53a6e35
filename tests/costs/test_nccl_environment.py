"""NCCL's variables: values are checked, names are known or nearly, effects are told."""

import pytest

from simulator.base.errors import ScenarioError
from simulator.costs.nccl.environment import parse_environment, variables
from simulator.costs.nccl.graph import PathType
from simulator.costs.nccl.system import SearchOptions
from simulator.costs.nccl.version import NcclVersion

V = NcclVersion(2, 21, 5)
KINDS = ("flag", "int", "level", "algorithms", "protocols", "numbers", "text")


def test_values_are_parsed_by_kind() -> None:
    env = parse_environment(
        {
            "NCCL_MAX_NCHANNELS": "8",
            "NCCL_BUFFSIZE": "0x100000",
            "NCCL_P2P_LEVEL": "PHB",
            "NCCL_NET_GDR_LEVEL": 2,
            "NCCL_THREAD_THRESHOLDS": "8 8 64 8 8 64",
            "NCCL_P2P_DISABLE": True,
            "NCCL_IB_HCA": "mlx5_0,mlx5_1",
            "PATH": "/bin",
        },
        V,
    )
    assert env.integer("NCCL_MAX_NCHANNELS", 32) == 8
    assert env.integer("NCCL_BUFFSIZE", 0) == 1 << 20
    assert env.level("NCCL_P2P_LEVEL") is PathType.PHB
    assert env.level("NCCL_NET_GDR_LEVEL") is PathType.PXB
    assert env.values["NCCL_THREAD_THRESHOLDS"] == (8, 8, 64, 8, 8, 64)
    assert env.integer("NCCL_P2P_DISABLE", 0) == 1
    assert env.warnings == ()
    assert "PATH" not in env.values


def test_all_bad_values_are_reported_together_with_what_is_allowed() -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_environment(
            {
                "NCCL_NTHREADS": 100,
                "NCCL_P2P_DISABLE": "yes",
                "NCCL_P2P_LEVEL": "phb",
                "NCCL_CROSS_NIC": 3,
                "NCCL_THREAD_THRESHOLDS": "8 8",
            },
            V,
            file="job.yaml",
        )
    text = str(caught.value)
    assert len(caught.value.problems) == 5
    for part in (
        "job.yaml: NCCL_NTHREADS: 100 is outside its range",
        "a whole number ≥ 64 and ≤ 512, a multiple of 32",
        "NCCL_P2P_DISABLE: 'yes' is not a whole number",
        "allowed: 0 or 1",
        "Did you mean 'PHB'?",
        "NCCL_CROSS_NIC: 3 is outside its range",
        "6 whole numbers",
    ):
        assert part in text, part


def test_unknown_ineffective_and_untimely_variables_are_warnings() -> None:
    env = parse_environment(
        {
            "NCCL_MAX_CHANELS": 4,
            "NCCL_DEBUG": "INFO",
            "NCCL_LAUNCH_MODE": "PARALLEL",
            "NCCL_PAT_ENABLE": 1,
            "NCCL_LL_THRESHOLD": 0,
        },
        V,
    )
    said = "\n".join(env.warnings)
    assert "NCCL_MAX_CHANELS is not known. Did you mean 'NCCL_MAX_NCHANNELS'?" in said
    assert "NCCL_DEBUG has no effect in the model: logging" in said
    assert "NCCL_LAUNCH_MODE is not modelled" in said
    assert "NCCL_PAT_ENABLE came with NCCL 2.23: no effect in 2.21.5" in said
    assert "NCCL_LL_THRESHOLD has no effect in NCCL 2.21.5: removed in 2.5" in said
    assert env.values == {}


def test_a_name_far_from_all_others_gets_no_suggestion() -> None:
    assert parse_environment({"NCCL_ZZZZZZZZZZZZZ": 1}, V).warnings == (
        "NCCL_ZZZZZZZZZZZZZ is not known.",
    )


def test_old_names_count_unless_the_new_one_is_there() -> None:
    assert parse_environment({"NCCL_MAX_NRINGS": 2}, V).integer("NCCL_MAX_NCHANNELS", 0) == 2
    for order in (
        ("NCCL_MAX_NRINGS", "NCCL_MAX_NCHANNELS"),
        ("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS"),
    ):
        values = {"NCCL_MAX_NRINGS": 2, "NCCL_MAX_NCHANNELS": 3}
        env = parse_environment({name: values[name] for name in order}, V)
        assert env.integer("NCCL_MAX_NCHANNELS", 0) == 3


def test_algorithm_names_depend_on_the_version() -> None:
    old = parse_environment({"NCCL_ALGO": "Collnet,NVLS"}, NcclVersion(2, 12, 12))
    assert old.allows("NCCL_ALGO", "all_reduce", "collnet_chain")
    assert not old.allows("NCCL_ALGO", "all_reduce", "nvls")
    assert "unknown name 'NVLS'" in old.warnings[0]
    assert "skips it" in old.warnings[0]
    with pytest.raises(ScenarioError, match=r"unknown name 'Rign'.*\n.*Did you mean 'ring'"):
        parse_environment({"NCCL_ALGO": "Rign"}, NcclVersion(2, 24))
    with pytest.raises(ScenarioError, match="unknown function 'allredcue'"):
        parse_environment({"NCCL_PROTO": "allredcue:LL"}, NcclVersion(2, 24))


def test_a_caret_inverts_a_list() -> None:
    env = parse_environment({"NCCL_PROTO": "^LL128"}, V)
    allowed = [p for p in ("LL", "LL128", "Simple") if env.allows("NCCL_PROTO", "reduce", p)]
    assert allowed == ["LL", "Simple"]


def test_the_search_takes_its_options_from_the_environment() -> None:
    env = parse_environment(
        {
            "NCCL_P2P_DISABLE": 1,
            "NCCL_P2P_LEVEL": "SYS",
            "NCCL_SHM_DISABLE": 1,
            "NCCL_NVB_DISABLE": 1,
            "NCCL_PXN_DISABLE": 1,
            "NCCL_NET_GDR_LEVEL": "LOC",
            "NCCL_CROSS_NIC": 0,
            "NCCL_NVLS_ENABLE": 0,
            "NCCL_COLLNET_ENABLE": 1,
        },
        V,
    )
    assert SearchOptions.from_environment(env) == SearchOptions(
        p2p_level=PathType.LOC,
        shared_memory=False,
        nvb=False,
        pxn=False,
        gdr_level=PathType.LOC,
        cross_nic=0,
        nvls=False,
        collnet=True,
    )
    assert SearchOptions.from_environment(parse_environment({}, V)) == SearchOptions()


def test_every_row_of_the_table_is_complete() -> None:
    table = variables()
    assert len(table) > 60
    for variable in table.values():
        assert variable.effect in ("modelled", "none", "plan", "unknown"), variable.name
        assert (variable.effect == "modelled") == bool(variable.acts), variable.name
        assert variable.note, variable.name
        assert variable.kind in (
            "flag",
            "int",
            "level",
            "algorithms",
            "protocols",
            "numbers",
            "text",
        )
    names = [name for v in table.values() for name in (v.name, *v.aliases)]
    assert len(names) == len(set(names))
