"""Runs fuzzers, as many at a time as there are cores: fuzz.py SECONDS RESULT.json PROGRAM...

Each starts from files that PyTorch and safetensors write, and from what it has found before, which is kept in
~/.cache/fsdpd/corpus/NAME; what makes it fail is kept there too, as crash-* and so on, and named. RESULT.json has the
names of those that passed and of those that failed. Exit code 0 when all ran.
"""

import concurrent.futures
import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save as save_safetensors

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "fsdpd/corpus"
# A case that takes longer, or more memory, is a fault.
CASE_S, MEMORY_MB, LARGEST = 20, 2048, 65536
STATE = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "step": 7,
         "list": [1, 2.5, None, "text", (True,)]}


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def seeds():
    """By fuzzer, what the real tools write."""
    with tempfile.TemporaryDirectory() as folder:
        dcp.save(STATE, checkpoint_id=folder, no_dist=True)
        metadata = pathlib.Path(folder, ".metadata").read_bytes()
        files = [path.read_bytes() for path in pathlib.Path(folder).glob("*.distcp")]
    return {
        "pickle_fuzzer": [pickle.dumps(STATE["list"], protocol=protocol) for protocol in (2, 3, 4, 5)] + [metadata],
        "metadata_fuzzer": [metadata],
        "record_fuzzer": [saved(each) for each in STATE.values()] + files,
        "safetensors_fuzzer": [save_safetensors({name: each for name, each in STATE.items() if torch.is_tensor(each)})],
        "json_fuzzer": [b'{"weight_map": {"a": "b.safetensors"}, "n": [1, -2.5e3, true, null, "\\ud83d\\ude00"]}'],
        "sums_fuzzer": [b".metadata 100 12345678\n__0_0.distcp 5000000000 00000007\n"],
    }


def run(program, seconds, start):
    name = pathlib.Path(program).name
    kept = CACHE / name
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for number, content in enumerate(start.get(name, [])):
            pathlib.Path(folder, str(number)).write_bytes(content)
        done = subprocess.run(
            [program, f"-max_total_time={seconds}", f"-timeout={CASE_S}", f"-rss_limit_mb={MEMORY_MB}",
             f"-max_len={LARGEST}", f"-artifact_prefix={CACHE}/{name}.", "-print_final_stats=1", kept, folder],
            capture_output=True, text=True, errors="replace")
    stats = dict(line[len("stat::"):].split(":", 1) for line in done.stderr.splitlines() if line.startswith("stat::"))
    cases = stats.get("number_of_executed_units", "?").strip()
    print(f"{name}: {cases} cases, {len(list(kept.iterdir()))} kept in {kept}", flush=True)
    if done.returncode != 0:
        print(done.stderr[-6000:], flush=True)
    return name, done.returncode == 0


def main():
    seconds, result, *programs = sys.argv[1:]
    start = seeds()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        ended = list(pool.map(lambda program: run(program, seconds, start), programs))
    names = {True: [], False: []}
    for name, passed in ended:
        names[passed].append(name)
    pathlib.Path(result).write_text(json.dumps({"passed": names[True], "failed": names[False]}))


if __name__ == "__main__":
    main()
