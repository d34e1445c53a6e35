"""Bucket plans equal those of PyTorch's DistributedDataParallel, run here on one CPU rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import pytest

from simulator.models import get_model
from simulator.training.buckets import bucket_plan, print_plan
from simulator.training.plan import Call
from simulator.training.step import plan_step
from simulator.training.strategy import DataParallel, Precision, Strategy
from tests.models.torch_models import gpt2, resnet18
from tests.training.stubs import SecondsGpu

torch = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional

MIB = 2**20
Plan = list[tuple[int, tuple[int, ...]]]


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    store = tmp_path_factory.mktemp("store") / "file"
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=0, world_size=1
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.distributed.destroy_process_group()


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = resnet18()

    def block(self, block: Any, x: Any) -> Any:
        y = functional.relu(block.bn1(block.conv1(x)))
        y = block.bn2(block.conv2(y))
        way = block.downsample(x) if hasattr(block, "downsample") else x
        return functional.relu(y + way)

    def forward(self, x: Any) -> Any:
        net = self.net
        x = functional.max_pool2d(functional.relu(net.bn1(net.conv1(x))), 3, 2, 1)
        for group in (net.layer1, net.layer2, net.layer3, net.layer4):
            for block in group:
                x = self.block(block, x)
        return net.fc(x.mean((2, 3))).sum()


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            net = gpt2()
        self.net = net.to_empty(device="cpu")
        self.net.lm_head.weight = self.net.transformer.wte.weight
        for parameter in self.net.parameters():
            nn.init.constant_(parameter, 0.01)

    def forward(self, tokens: Any) -> Any:
        inner = self.net.transformer
        x = inner.wte(tokens) + inner.wpe(torch.arange(tokens.shape[1]))
        for block in inner.h:
            y = block.ln_1(x)
            q, k, v = torch.addmm(block.attn.c_attn.bias, y[0], block.attn.c_attn.weight).chunk(
                3, dim=1
            )
            y = functional.softmax(q @ k.T, dim=1) @ v
            x = x + torch.addmm(block.attn.c_proj.bias, y, block.attn.c_proj.weight)
            y = block.ln_2(x)
            y = torch.addmm(block.mlp.c_fc.bias, y[0], block.mlp.c_fc.weight)
            y = torch.addmm(block.mlp.c_proj.bias, functional.gelu(y), block.mlp.c_proj.weight)
            x = x + y
        return self.net.lm_head(inner.ln_f(x)).float().logsumexp(-1).sum()


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "resnet-18": (ResNet, lambda: torch.randn(2, 3, 64, 64)),
    "gpt2-small": (Gpt, lambda: torch.randint(0, 50257, (1, 8))),
}


@lru_cache
def torch_plan(
    name: str, bucket_cap_mb: int | None = None, find_unused_parameters: bool = False
) -> tuple[list[Plan], list[int]]:
    """Return the members of each bucket in two iterations, and the order of readiness."""
    options: dict[str, Any] = {"find_unused_parameters": find_unused_parameters}
    if bucket_cap_mb is not None:
        options["bucket_cap_mb"] = bucket_cap_mb
    build, data = MODELS[name]
    model = build()
    number = {id(parameter): i for i, parameter in enumerate(model.parameters())}
    ready: list[int] = []
    for index, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda _, i=index: ready.append(i))
    ddp = nn.parallel.DistributedDataParallel(model, **options)
    seen: list[Plan] = []

    def hook(_: object, bucket: Any) -> Any:
        assert bucket.index() == len(seen[-1])
        members = tuple(number[id(parameter)] for parameter in bucket.parameters())
        seen[-1].append((bucket.buffer().numel() * 4, members))
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    hook.__annotations__.clear()  # torch reads them
    ddp.register_comm_hook(None, hook)
    for _ in range(2):
        seen.append([])
        ddp(data()).backward()
    return seen, ready[: len(number)]


def gradients(name: str) -> tuple[list[int], list[str]]:
    parameters = [p for layer in get_model(name).layers for p in layer.parameters if not p.tied_to]
    return [4 * p.count for p in parameters], [p.name for p in parameters]


def ours(name: str, **options: Any) -> Plan:
    plan = bucket_plan(gradients(name)[0], **options)
    return [(bucket.size_bytes, bucket.members) for bucket in plan]


def sizes_of(plan: Plan) -> list[int]:
    return [size for size, _ in plan]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cap", [None, 5])
def test_buckets_equal_pytorchs_before_and_after_the_rebuild(name: str, cap: int | None) -> None:
    plans, ready = torch_plan(name, cap)
    # A cap given by the user holds for the first bucket, too.
    limits = {}
    if cap is not None:
        limits = {"first_bucket_bytes": cap * MIB, "bucket_cap_bytes": cap * MIB}
    assert len(plans[0]) == 1, "all gradients in one bucket until their order is known"
    assert sizes_of(ours(name, rebuilt=False, **limits)) == sizes_of(plans[0])
    assert ours(name, ready=ready, **limits) == plans[1]
    assert len(plans[1]) > 1


@pytest.mark.parametrize("name", MODELS)
def test_buckets_that_may_hold_unused_parameters_stay_in_registered_order(name: str) -> None:
    plans, _ = torch_plan(name, find_unused_parameters=True)
    found = ours(name, find_unused=True)
    assert [(size, tuple(sorted(of))) for size, of in plans[1]] == [
        (size, tuple(sorted(of))) for size, of in found
    ]
    assert len(found) > 2


@pytest.mark.parametrize("name", MODELS)
def test_last_parameter_first_gives_the_same_sizes(name: str) -> None:
    # Within a block autograd's order differs a little from the reverse of the registered one; the
    # buckets' sizes do not.
    plans, ready = torch_plan(name)
    assert ready != sorted(ready, reverse=True)
    assert sizes_of(ours(name)) == sizes_of(plans[1])


@pytest.mark.parametrize("cap", [None, 5])
@pytest.mark.parametrize(("name", "optimizer"), [("resnet-18", "sgd"), ("gpt2-small", "adam")])
def test_a_planned_step_reduces_those_buckets(name: str, optimizer: str, cap: int | None) -> None:
    strategy = Strategy(
        data=4,
        framework="torch",
        optimizer=optimizer,  # type: ignore[arg-type]
        precision=Precision(parameter_bytes=4, gradient_bytes=4, reduce_bytes=4),
        data_parallel=DataParallel(bucket_bytes=None if cap is None else cap * MIB),
    )
    plan = plan_step(get_model(name), strategy, SecondsGpu())
    calls = [t for t in plan.roles[0].tasks if isinstance(t, Call) and t.axis == "data"]
    plans, _ = torch_plan(name, cap)
    assert [call.size_bytes for call in calls] == sizes_of(plans[1])


def test_the_plan_can_be_read() -> None:
    sizes, names = gradients("resnet-18")
    lines = print_plan(bucket_plan(sizes), names).splitlines()
    assert lines[0] == "bucket 0: 1.96 MiB, 2 gradients: fc.bias … fc.weight"
    assert len(lines) == 3
