"""The model against kernels measured by others, shape by shape."""

from __future__ import annotations

import csv
from importlib import resources
from statistics import median, quantiles

from simulator.compute import ComputeModel
from simulator.models.kernels import Attention, Gemm
from tests.compute.gpus import A100_PCIE, ALONE

MODEL = ComputeModel(A100_PCIE, constants=ALONE)
PEAK = 312e12


def rows(kind):
    path = resources.files("validation").joinpath("measurements/training/kernels.csv")
    with path.open(encoding="utf-8") as stream:
        found = [row for row in csv.DictReader(stream) if row["kind"] == kind]
    assert len(found) > 15
    return found


def spread(errors):
    return median(errors), quantiles(errors, n=10)[-1]


def test_products_of_layers_on_a100():
    errors = []
    for row in rows("gemm"):
        kernel = Gemm(
            name="product",
            phase=row["phase"],
            m=int(row["m"]),
            n=int(row["n"]),
            k=int(row["k"]),
            count=int(row["batch"]),
        )
        share = kernel.flops / MODEL.kernel_s(kernel, "bfloat16") / PEAK
        errors.append(abs(share / float(row["share_of_peak"]) - 1))
    middle, ninth = spread(errors)
    assert middle < 0.03
    assert ninth < 0.13


def test_attention_from_four_to_128_heads_on_a100():
    errors = []
    for row in rows("attention"):
        seq, heads = int(row["seq"]), int(row["heads"])
        width, value = int(row["head_dim"]), int(row["value_dim"])
        kernel = Attention(
            name="attention",
            phase=row["phase"],
            batch=1,
            heads=heads,
            kv_heads=int(row["kv_heads"]),
            q_len=seq,
            kv_len=seq,
            head_dim=width,
            value_dim=value,
            causal=True,
        )
        work = seq * seq * heads * (width + value) * (1 if row["phase"] == "forward" else 2.5)
        share = work / MODEL.kernel_s(kernel, "bfloat16") / PEAK
        errors.append(abs(share / float(row["share_of_peak"]) - 1))
    middle, ninth = spread(errors)
    assert middle < 0.10
    assert ninth < 0.26
