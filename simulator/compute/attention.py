"""Time of fused attention (FlashAttention): products, softmax per score, memory, waves.

Forward work is two products of 2·d FLOPs per pair of query and key, backward five.  A causal mask
leaves half of the pairs and, whole tiles being computed, the diagonal ones.  Between the products
every score takes an exponential and some element-wise work, which does not shrink with the head's
width: the reason why narrow heads are slow.

References
----------
.. [1] T. Dao et al., "FlashAttention", arXiv 2205.14135.
.. [2] T. Dao, "FlashAttention-2", arXiv 2307.08691.
.. [3] J. Shah et al., "FlashAttention-3", arXiv 2407.08608.
"""

from __future__ import annotations

from simulator.compute.constants import Constants
from simulator.compute.gemm import ceiling_flops, reached_Bps
from simulator.compute.gpu import Gpu
from simulator.models.kernels import Attention

__all__ = ["attention_s", "scored_pairs"]

_BACKWARD = ("input_gradient", "weight_gradient")
_USUAL_WIDTH = 128
_FLOPS_PER_CYCLE = {
    "volta": 1024.0,
    "turing": 1024.0,
    "ampere": 2048.0,
    "ada": 1024.0,
    "hopper": 4096.0,
    "blackwell": 8192.0,
    "cdna2": 1024.0,
    "cdna3": 2048.0,
}
"""Dense two-byte FLOPs of a compute unit per cycle, by the vendors' architecture papers."""


def scored_pairs(kernel: Attention, tile: int) -> float:
    """Return the pairs of query and key of one head that are computed, whole tiles."""
    q_len, kv_len = kernel.q_len, kernel.kv_len
    if kernel.window is not None and kernel.window < kv_len:
        kept = kernel.window + tile
        return q_len * float(min(kept, kv_len))
    if kernel.causal and q_len == kv_len:
        return q_len * (kv_len + min(tile, kv_len)) / 2
    if kernel.causal:
        # The last query sees all keys, the first kv_len - q_len + 1 of them.
        return q_len * (kv_len - max(q_len - tile, 0) / 2)
    return float(q_len) * kv_len


def attention_s(kernel: Attention, dtype: str, gpu: Gpu, name: str, constants: Constants) -> float:
    """Return seconds of a fused attention kernel, launch excluded.

    Parameters
    ----------
    name
        Generation of the kernel: ``flash1``, ``flash2``, ``flash3``.
    """
    # Products of attention are in two bytes where the step's type is narrower.
    key = gpu.wider(dtype)
    by_gpu = constants.attention[name]
    kind = by_gpu.get(gpu.generation) or by_gpu["default"]
    backward = kernel.phase in _BACKWARD
    block = min(constants.attention_tile, kernel.q_len)
    pairs = scored_pairs(kernel, constants.attention_tile) * kernel.batch * kernel.heads
    width = kernel.head_dim + kernel.value_dim
    per_pair = 2.0 * width if not backward else 2.0 * (3 * kernel.head_dim + 2 * kernel.value_dim)
    rate = ceiling_flops(gpu, key, constants)
    share = kind.backward_matmul if backward else kind.matmul
    if kernel.head_dim > _USUAL_WIDTH:
        share *= kind.wide
    cycles = kind.backward_cycles if backward else kind.forward_cycles
    # All units together do so many FLOPs per cycle at the sustained clock.
    per_cycle = _FLOPS_PER_CYCLE.get(gpu.generation, 2048.0)
    pair_s = (per_pair / share + cycles * per_cycle) / rate
    compute_s = pairs * pair_s
    if gpu.compute_units:
        tail = constants.attention_tail
        uneven = kernel.causal and kernel.window is None
        left = tail["backward" if backward else "causal" if uneven else "forward"]
        longest = block * min(kernel.kv_len, kernel.window or kernel.kv_len)
        compute_s += left * longest * pair_s * gpu.compute_units
    size = 2.0
    tokens_q = float(kernel.batch) * kernel.q_len * kernel.heads
    tokens_kv = float(kernel.batch) * kernel.kv_len * kernel.kv_heads
    once = size * width * (tokens_q + tokens_kv)
    # The backward reads what the forward read and wrote, and writes as many gradients, those of
    # queries in four bytes.
    memory_s = once * (3.0 if backward else 1.0) / reached_Bps(gpu, constants)
    return max(compute_s, memory_s) + constants.ramp_s
