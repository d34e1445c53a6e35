"""How long kernels take on one GPU: matrix products, attention, memory-bound work, optimisers."""

from simulator.compute.constants import Constants, load_constants
from simulator.compute.gpu import DTYPES, Gpu
from simulator.compute.model import ComputeModel, compute_model

__all__ = ["DTYPES", "ComputeModel", "Constants", "Gpu", "compute_model", "load_constants"]
