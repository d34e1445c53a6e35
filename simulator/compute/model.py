"""The compute model: how long kernels, optimisers and copies take on one GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from statistics import NormalDist

from simulator.base.errors import ScenarioError, unknown_name
from simulator.compute.attention import attention_s
from simulator.compute.constants import Constants, load_constants
from simulator.compute.gemm import gemm_s, reached_Bps
from simulator.compute.gpu import Gpu
from simulator.models.kernels import Attention, Gemm, Kernel, MemoryBound, Operation, Sync

__all__ = ["ComputeModel", "compute_model"]


def slowest_of(ranks: int) -> float:
    """Return how many standard deviations the slowest of so many is expected behind the mean.

    Blom's approximation of the largest of n normal values.

    Examples
    --------
    >>> round(slowest_of(1), 2), round(slowest_of(8), 2), round(slowest_of(1024), 1)
    (0.0, 1.43, 3.2)
    """
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


class ComputeModel:
    """Seconds of work on one GPU.

    Parameters
    ----------
    gpu
        The GPU.
    constants
        Constants; the shipped ones by default.
    framework
        Whose host overhead per kernel holds: ``megatron``, ``deepspeed``, ``torch``; ``graph``
        where CUDA graphs replay the launches.
    attention
        Generation of fused attention: ``flash1``, ``flash2``, ``flash3``; None: the one usual on
        that GPU.
    ranks
        GPUs that compute in step: the slowest of them sets the pace.
    blocking
        The host waits for each kernel before it enqueues the next (``CUDA_LAUNCH_BLOCKING=1``).
    """

    def __init__(
        self,
        gpu: Gpu,
        *,
        constants: Constants | None = None,
        framework: str = "megatron",
        attention: str | None = None,
        ranks: int = 1,
        blocking: bool = False,
    ) -> None:
        self.gpu = gpu
        self.blocking = blocking
        self.constants = constants or load_constants()
        known = self.constants
        if framework not in known.host_launch_s:
            raise ScenarioError(unknown_name("framework", framework, known.host_launch_s))
        if attention is not None and attention not in known.attention:
            raise ScenarioError(unknown_name("attention kernel", attention, known.attention))
        self.framework = framework
        self.attention = attention or known.attention_kernel.get(
            gpu.generation, known.attention_kernel["default"]
        )
        self.pace = known.run_slowdown * (1.0 + known.gpu_spread * slowest_of(ranks))
        """Factor on kernels' times: in a run, on the slowest of the GPUs."""
        self.memory_Bps = reached_Bps(gpu, known)
        """Bandwidth that streaming kernels reach, bytes/s."""
        self._timed = lru_cache(maxsize=65536)(self._kernel_s)

    @property
    def communication_slowdown(self) -> float:
        """Factor by which compute is longer while a collective runs on the same GPU."""
        return self.constants.communication_slowdown

    def kernel_s(self, kernel: Kernel, dtype: str) -> float:
        """Return the time of a kernel on a busy stream, its launch included.

        Parameters
        ----------
        kernel
            Work of one kernel.
        dtype
            Type of products that do not name their own.
        """
        return self.pace * self._timed(kernel, dtype)

    def _kernel_s(self, kernel: Kernel, dtype: str) -> float:
        known = self.constants
        if isinstance(kernel, Gemm):
            if min(kernel.m, kernel.n, kernel.k, kernel.count) <= 0:
                return 0.0
            own = kernel.dtype or (dtype if kernel.eight_bit else self.gpu.wider(dtype))
            return gemm_s(kernel, own, self.gpu, known) + known.launch_s
        if isinstance(kernel, Attention):
            return attention_s(kernel, dtype, self.gpu, self.attention, known) + known.launch_s
        return kernel.n_bytes / self.memory_Bps + kernel.launches * (known.ramp_s + known.launch_s)

    def work_s(self, work: Iterable[Operation], dtype: str) -> tuple[float, ...]:
        """Return the time of each operation; that of a `Sync` is 0.

        The host enqueues kernels one after another: where they are shorter in all than it takes
        to enqueue them, the GPU waits for the host, and all are longer in proportion.  Collectives
        are not counted: their own time passes while the host goes on.
        """
        times = []
        launches = 0
        for operation in work:
            if isinstance(operation, Sync):
                times.append(0.0)
                continue
            times.append(self.kernel_s(operation, dtype))
            launches += operation.launches if isinstance(operation, MemoryBound) else 1
        host_s = launches * self.constants.host_launch_s[self.framework]
        total_s = sum(times)
        if self.blocking:
            host_s += total_s
        if 0.0 < total_s < host_s:
            return tuple(time * host_s / total_s for time in times)
        return tuple(times)

    def copy_s(self, n_bytes: float, *, launches: int = 1) -> float:
        """Return the time of a copy within HBM: every byte read once and written once."""
        if n_bytes <= 0:
            return 0.0
        known = self.constants
        return 2.0 * n_bytes / self.memory_Bps + launches * (known.ramp_s + known.launch_s)

    def cast_s(self, n_elements: float, from_bytes: float, to_bytes: float) -> float:
        """Return the time to convert elements from one width to another."""
        if n_elements <= 0:
            return 0.0
        known = self.constants
        moved = n_elements * (from_bytes + to_bytes)
        return moved / self.memory_Bps + known.ramp_s + known.launch_s

    def optimizer_s(
        self,
        n_parameters: float,
        *,
        kind: str = "adam",
        parameter_bytes: float = 2.0,
        gradient_bytes: float = 4.0,
        master_bytes: float = 4.0,
        moment_bytes: float = 8.0,
        clip: bool = True,
    ) -> float:
        """Return the time of a fused optimiser step over the parameters that a rank owns.

        Gradients are read; master copy and moments read and written; the parameters written in
        their own width.  Clipping by the global norm reads the gradients once more and scales
        them in the update.

        Parameters
        ----------
        kind
            ``adam``, ``sgd`` (without moments) or ``none``.
        """
        if kind == "none" or n_parameters <= 0:
            return 0.0
        moments = moment_bytes if kind == "adam" else 0.0
        master = master_bytes or parameter_bytes
        per_parameter = gradient_bytes * (2.0 if clip else 1.0) + 2.0 * (master + moments)
        per_parameter += parameter_bytes if master_bytes else 0.0
        moved_s = n_parameters * per_parameter / self.memory_Bps
        return moved_s + self.constants.host_step_s[self.framework]

    def host_copy_s(self, n_bytes: float, link_Bps: float) -> float:
        """Return the time of a copy between host and GPU over a link of `link_Bps`, one way."""
        if n_bytes <= 0:
            return 0.0
        return n_bytes / (link_Bps * self.constants.host_copy_efficiency) + 10e-6

    def cpu_optimizer_s(
        self,
        n_parameters: float,
        cpu_memory_Bps: float,
        *,
        parameter_bytes: float = 2.0,
        gradient_bytes: float = 4.0,
        master_bytes: float = 4.0,
        moment_bytes: float = 8.0,
    ) -> float:
        """Return the time of Adam on the CPU, bounded by its DRAM.

        Parameters
        ----------
        n_parameters
            Of all ranks whose CPU part this is.
        cpu_memory_Bps
            DRAM bandwidth that they share, reads and writes together.
        """
        per_parameter = gradient_bytes + 2.0 * (master_bytes + moment_bytes) + parameter_bytes
        return (
            n_parameters * per_parameter / (cpu_memory_Bps * self.constants.cpu_memory_efficiency)
        )


def compute_model(
    *,
    name: str,
    generation: str,
    peak_flops: Mapping[str, float],
    memory_Bps: float,
    compute_units: int = 0,
    l2_bytes: int = 0,
    framework: str = "megatron",
    attention: str | None = None,
    ranks: int = 1,
    constants: Constants | None = None,
) -> ComputeModel:
    """Return the compute model of a GPU given in plain numbers.

    Parameters
    ----------
    name, generation, peak_flops, memory_Bps, compute_units, l2_bytes
        As in a GPU preset: dense peaks in FLOP/s by ``fp32 tf32 fp16 bf16 fp8 fp4 int8``,
        bytes/s, number, bytes.
    framework, attention, ranks, constants
        As of `ComputeModel`.
    """
    gpu = Gpu(
        name=name,
        generation=generation,
        peak_flops=peak_flops,
        memory_Bps=memory_Bps,
        compute_units=compute_units,
        l2_bytes=l2_bytes,
    )
    return ComputeModel(
        gpu, constants=constants, framework=framework, attention=attention, ranks=ranks
    )
