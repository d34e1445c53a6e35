"""Models: parameters, kernels and memory of their layers."""

from simulator.models.dims import Dims
from simulator.models.kernels import Attention, Gemm, Kernel, MemoryBound, Operation, Sync, Work
from simulator.models.model import ActivationBytes, Layer, Model, Parameter, Slice
from simulator.models.names import from_dims, get_model, model_names

__all__ = [
    "ActivationBytes",
    "Attention",
    "Dims",
    "Gemm",
    "Kernel",
    "Layer",
    "MemoryBound",
    "Model",
    "Operation",
    "Parameter",
    "Slice",
    "Sync",
    "Work",
    "from_dims",
    "get_model",
    "model_names",
]
