#!/usr/bin/env python3
"""Measures the speed of checkpoint saves and conversions, compared with the disk and with PyTorch.

    .python/bin/python tests/perf/checkpoint_speed.py [--directory /tmp] [--gib 2] [--ranks 2]

A CPU job trains one step of a Llama with --gib GiB of main parameters and moments, and saves. `dd conv=fsync` writes as many
bytes with as many writers. `torch.distributed.checkpoint.async_save` saves as many bytes with as many processes, at several
thread counts. Then `fsdpctl ckpt convert` converts between all formats, with the optimizer state if the target supports it.
The results are GB/s of written data, including fsync, and peak memory. Inputs are in the page cache, as after a job. Prints a
table and one JSON line, and judges nothing. Takes about two minutes on a disk with 0.5 GB/s, and four times --gib of its space.
Needs //fsdp:fsdpd-rank and //client:fsdpctl built (FSDPD_BIN: their directory).
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "perf")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import torch.multiprocessing as processes  # noqa: E402
from rank_processes import run_ranks  # noqa: E402

from harness.programs import program  # noqa: E402
from harness.specs import to_message  # noqa: E402

GB = 1e9
STATE_BYTES = 12  # Of a parameter: itself and two moments.
SIZES = {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816, "heads": 16, "kv_heads": 4}
THREADS = [1, 2, 4]
MEGABYTE = 1 << 20
# Native, of a job; then what was made of it.
PAIRS = [("native", "torch_dist"), ("torch_dist", "fsdp_dtensor"), ("native", "hf"), ("torch_dist", "hf"),
         ("hf", "fsdp_dtensor"), ("hf", "torch_dist")]


def model_of(gib):
    """Returns a Llama with about that many GiB, including moments."""
    hidden, inner, heads, groups = (SIZES[key] for key in ("hidden_size", "intermediate_size", "heads", "kv_heads"))
    layer = hidden * (2 * hidden + 2 * hidden * groups // heads + 3 * inner)
    ends = 2 * SIZES["vocab_size"] * hidden
    return {**SIZES, "layers": max(1, round((gib * 2**30 / STATE_BYTES - ends) / layer))}


def save(options, directory):
    """Saves one checkpoint; returns (its directory, bytes, seconds)."""
    message = to_message({
        "name": "perf", "model": {"llama": model_of(options.gib)}, "data": {"synthetic": {}, "sequence_length": 16},
        "train": {"steps": 1, "micro_batch": 1, "global_batch": options.ranks},
        "fsdp": {"strategy": "optim_grads_params"}, "precision": {"compute": "fp32"},
        "checkpoint": {"dir": str(directory / "runs"), "on_end": True},
        "resources": {"nodes": 1, "ranks_per_node": options.ranks, "device": "cpu"}})
    (saved,) = run_ranks(message, options.ranks, directory)[0].saved
    if saved.error:
        sys.exit(f"the job could not save: {saved.error}")
    return pathlib.Path(saved.path), saved.bytes, saved.seconds


def disk(directory, size, writers):
    """Returns the seconds of that many concurrent `dd`."""
    commands = [["dd", "if=/dev/zero", f"of={directory}/dd.{number}", "bs=1M", f"count={size // writers // MEGABYTE}",
                 "conv=fsync", "status=none"] for number in range(writers)]
    began = time.monotonic()
    running = [subprocess.Popen(command) for command in commands]
    if any([each.wait() for each in running]):
        sys.exit("dd failed")
    seconds = time.monotonic() - began
    for number in range(writers):
        (directory / f"dd.{number}").unlink()
    return seconds


def async_rank(rank, world, directory, size):
    """One process, which saves a separate part of the bytes, like shards. Rank 0 writes the times."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=world)
    count = 32
    state = {f"{rank}.{number}": torch.ones(size // world // count // 4) for number in range(count)}
    timed = {}
    for threads in THREADS:
        target = pathlib.Path(directory) / "dcp"
        dist.barrier()
        began = time.monotonic()
        writer = dcp.FileSystemWriter(target, thread_count=threads, sync_files=True)
        future = dcp.async_save(state, storage_writer=writer)
        stalled = time.monotonic() - began
        future.result()
        dist.barrier()
        timed[threads] = {"seconds": time.monotonic() - began, "stall_seconds": stalled}
        if rank == 0:
            shutil.rmtree(target)
    if rank == 0:
        (pathlib.Path(directory) / "timed.json").write_text(json.dumps(timed))
    dist.destroy_process_group()


def async_save(directory, size, world):
    processes.spawn(async_rank, (world, str(directory), size), nprocs=world)
    return json.loads((directory / "timed.json").read_text())


def peak_memory(process):
    """Returns the peak memory of a started process until its exit, without that of this process before exec."""
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    peak = max(peak, int(line.split()[1]) * 1024)
        time.sleep(0.01)
    return peak


def convert(source, target, to):
    """Returns (bytes on disk, seconds, peak memory in bytes)."""
    command = [program("client/fsdpctl"), "ckpt", "convert", str(source), str(target), "--to", to]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=output)
        memory = peak_memory(running)
        seconds = time.monotonic() - began
        if running.returncode:
            output.seek(0)
            sys.exit(f"{' '.join(command)}: {output.read()}")
    return sum(path.stat().st_size for path in target.iterdir()), seconds, memory


def measure(options, directory):
    native, size, seconds = save(options, directory)
    reported = {"what": "checkpoint_speed", "ranks": options.ranks, "bytes": size, "torch": torch.__version__,
            "cores": os.cpu_count(), "save_seconds": seconds, "dd_seconds": disk(directory, size, options.ranks),
            "dcp_async": async_save(directory, size, options.ranks), "converted": []}
    rate = size / GB
    print(f"{rate:.2f} GB, {options.ranks} ranks")
    print(f"  saved by a job         {rate / reported['save_seconds']:6.2f} GB/s")
    print(f"  dd conv=fsync          {rate / reported['dd_seconds']:6.2f} GB/s")
    for threads, timed in reported["dcp_async"].items():
        print(f"  dcp.async_save, {threads:>2} thr {rate / timed['seconds']:6.2f} GB/s, stalled for {timed['stall_seconds']:.2f} s")
    best = min(timed["seconds"] for timed in reported["dcp_async"].values())
    print(f"  saved over dd {reported['dd_seconds'] / reported['save_seconds']:.2f}, over async_save {best / reported['save_seconds']:.2f}")
    made = {"native": native}
    for source, to in PAIRS:
        target = directory / f"{source}-{to}"
        written, seconds, memory = convert(made[source], target, to)
        reported["converted"].append({"from": source, "to": to, "bytes": written, "seconds": seconds, "memory_bytes": memory})
        print(f"  {source:>10} -> {to:<12} {written / GB / seconds:6.2f} GB/s, {written / GB:5.2f} GB, "
              f"{memory / 2**20:6.0f} MiB at the peak")
        if to in made or to == "fsdp_dtensor":
            shutil.rmtree(target)
        else:
            made[to] = target
    return reported


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="on the disk that is meant; default: the system's for temporary files")
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fsdpd-perf-", dir=options.directory) as directory:
        print(json.dumps(measure(options, pathlib.Path(directory))))


if __name__ == "__main__":
    main()
