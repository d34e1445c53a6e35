"""Loading one preset from its files, nothing cached."""

from topologies import hardware, hardware_build


def _cold() -> None:
    for cached in (
        hardware._load,
        hardware.canonical,
        hardware._by_folded,
        hardware._node_names,
        hardware_build.read,
        hardware_build.gpu_spec,
    ):
        cached.cache_clear()


def test_load_one_preset_cold(benchmark):
    node = benchmark.pedantic(
        hardware.load, args=("p5.48xlarge",), setup=_cold, rounds=20, iterations=1
    )
    assert node.name == "aws-p5"
