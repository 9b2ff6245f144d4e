"""Times of compiled calls on a GPU, and the rate of its matrix products. The planner converts the times to FLOPs of matrix
products, so they also serve for other GPUs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

LEAST_SECONDS = 0.5  # Per call.
WARM_SECONDS = 2.0  # Until the power limit has lowered the frequency.
BATCH = 5  # Calls between two readings of the time.
SIZE = 8192  # Of the matrices.


def seconds_per_call(run: Callable[[], object], synchronize: Callable[[], None], at_least: float = LEAST_SECONDS) -> float:
    run()
    synchronize()
    count, began = 0, time.perf_counter()
    while True:
        for _ in range(BATCH):
            run()
        synchronize()
        count += BATCH
        passed = time.perf_counter() - began
        if passed >= at_least:
            return passed / count


def call_seconds(run: Callable[[], object]) -> float:
    return seconds_per_call(run, torch.cuda.synchronize)


def graph_seconds(run: Callable[[], object]) -> float:
    """The time of a call in a CUDA graph, where the kernels of a small call are not launched one by one. Infinity if the call
    cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        # After an error, torch.cuda.graph leaves its stream current.
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, capture_error_mode="relaxed"):
            run()
    except RuntimeError:
        return math.inf
    return seconds_per_call(graph.replay, torch.cuda.synchronize)


def matmul_flops(dtype: torch.dtype, device: torch.device) -> float:
    """FLOPs per second of matrix products of random values."""
    left, right = (torch.randn(SIZE, SIZE, device=device).to(dtype) for _ in range(2))
    result = torch.empty_like(left)

    def run() -> None:
        torch.mm(left, right, out=result)
    seconds_per_call(run, torch.cuda.synchronize, WARM_SECONDS)
    return 2.0 * SIZE**3 / call_seconds(run)
