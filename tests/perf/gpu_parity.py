#!/usr/bin/env python3
"""Parity of our engine and PyTorch FSDP2 on this machine's GPUs: from the same weights on the same tokens, twenty steps.

    tests/perf/gpu_parity.py --ranks 4

The settings are those of tests/parity, which compares the two on CPU in every commit. Here ranks are GPUs over NCCL, in fp32
and in bf16 (bf16 compute, fp32 main weights and gradients). Prints one JSON line per comparison: the largest relative difference
of a loss, and the largest difference of weights relative to their change during training. NCCL's summation order differs, so
nothing is bit-equal. The bound in bf16 is the difference of FSDP2 in bf16 from FSDP2 in fp32. Exit code 1 if a bound is exceeded.
Needs //fsdp/engine:train_local built with --config=cuda (FSDPD_BIN: its directory).
"""

import argparse
import json
import pathlib
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "parity")]

import numpy  # noqa: E402
from models import build  # noqa: E402
from setting import MODELS, Setting, job_spec, read_weights, run_ours, run_theirs, write_start_weights  # noqa: E402

STRATEGIES = {
    **{name: {"strategy": name} for name in ("no_shard", "optim", "optim_grads", "optim_grads_params")},
    "hsdp": {"strategy": "optim_grads_params", "outer": {"size": 2, "strategy": "no_shard"}},
    "hfsdp": {"strategy": "optim_grads_params", "outer": {"size": 2, "strategy": "optim"}},
}
# As on CPU (tests/parity/test_fsdp2.py) for fp32, with room for NCCL's and cuBLAS's own orders of summation.
BOUNDS = {"fp32": {"loss": 3e-6, "weights": 1e-4}}


def loss_difference(first, second):
    return max(abs(a - b) / abs(b) for a, b in zip(first.losses, second.losses, strict=True))


def compare(our, their, start, bounds):
    line = {"loss": loss_difference(our, their), "weights": float(numpy.abs(our.weights - their.weights).max()),
            "moved": float(numpy.abs(our.weights - start).max())}
    line["within"] = line["loss"] <= bounds["loss"] and line["weights"] <= bounds["weights"]
    return line


def comparisons(directory, ranks):
    settings = [Setting(ranks, accumulation, clip) for accumulation in (1, 3) for clip in (False, True)]
    theirs = {precision: run_theirs(directory, settings, device="cuda", compute=precision)
              for precision in ("fp32", "bf16")}
    for setting in settings:
        exact, rounded = theirs["fp32"][setting], theirs["bf16"][setting]
        bounds = {**BOUNDS, "bf16": {"loss": 2 * loss_difference(rounded, exact),
                                     "weights": 2 * float(numpy.abs(rounded.weights - exact.weights).max())}}
        for precision in ("fp32", "bf16"):
            for name, fsdp in STRATEGIES.items():
                if "outer" in fsdp and ranks < 4:
                    continue
                made = job_spec(setting, fsdp)
                made["precision"].update(compute=precision, grad_comm="fp32")  # As the peer sums.
                made["resources"]["device"] = "cuda"
                our = run_ours(directory, made, directory / setting.model, "--device", "cuda")
                yield {"setting": str(setting), "precision": precision, "fsdp": name, "bound": bounds[precision],
                       **compare(our, theirs[precision][setting], read_weights(directory / setting.model),
                                 bounds[precision])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    within = True
    with tempfile.TemporaryDirectory(prefix="fsdpd-parity-") as directory:
        directory = pathlib.Path(directory)
        write_start_weights(build(MODELS["llama"]).parameters(), directory / "llama")
        run_ours(directory, job_spec(Setting(1, 1, False), {"strategy": "no_shard"}), directory / "llama", "--dump-batches",
                 directory / "batches")
        for line in comparisons(directory, options.ranks):
            print(json.dumps(line), flush=True)
            within = within and line["within"]
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
