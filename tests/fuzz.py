"""Runs fuzzers, as many in parallel as there are cores.

  fuzz.py replay SECONDS RESULT.json PROGRAM...  the cases in the repository, then new ones for SECONDS
  fuzz.py search SECONDS RESULT.json PROGRAM...  the same, starting also from the findings of this user's searches
  fuzz.py keep PROGRAM...                        add findings of searches to the repository: a minimal set with
                                                 the same coverage, to be committed

The repository has a fuzzer's cases in tests/fuzzers/corpora/NAME, one per line in base64; PyTorch and safetensors write
some more. A search stores new cases in ~/.cache/fsdpd/corpus/NAME. Inputs that make a fuzzer fail are stored there as
NAME.crash-* and so on, and printed. RESULT.json has the names of passed and failed fuzzers. Exit code 0 if all ran.
"""

import base64
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPORA = ROOT / "tests/fuzzers/corpora"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "fsdpd/corpus"
# A case that takes longer, or more memory, is a fault.
CASE_S, MEMORY_MB, LARGEST = 20, 2048, 65536
# What the repository keeps of each fuzzer: cases, and bytes of a case.
MOST_KEPT, LARGEST_KEPT = 400, 1024
STATE = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "step": 7,
         "list": [1, 2.5, None, "text", (True,)]}


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def seeds():
    """Returns outputs of the real programs by fuzzer."""
    with tempfile.TemporaryDirectory() as directory:
        dcp.save(STATE, checkpoint_id=directory, no_dist=True)
        metadata = pathlib.Path(directory, ".metadata").read_bytes()
        files = [path.read_bytes() for path in pathlib.Path(directory).glob("*.distcp")]
    specs = [path.read_bytes() for path in sorted((ROOT / "docs/bench/specs").glob("*.yaml"))]
    return {
        "pickle_fuzzer": [pickle.dumps(STATE["list"], protocol=protocol) for protocol in (2, 3, 4, 5)] + [metadata],
        "metadata_fuzzer": [metadata],
        "record_fuzzer": [saved(each) for each in STATE.values()] + files,
        "safetensors_fuzzer": [save_safetensors({name: each for name, each in STATE.items() if torch.is_tensor(each)})],
        "json_fuzzer": [b'{"weight_map": {"a": "b.safetensors"}, "n": [1, -2.5e3, true, null, "\\ud83d\\ude00"]}'],
        "page_token_fuzzer": [base64.urlsafe_b64encode(token) for token in
                              (b"1/1700000000000000000/job-1", b"2/a3/17/job-1", b"events/17", b"events2/a3/17")],
        "label_selector_fuzzer": [b"team=a,stage!=test,owner,!old"],
        "json_path_fuzzer": [b'{range .jobs[?(@.attempt>=2)]}{.id}{"\\t"}{.warnings[0:-1]}{end}'],
        "spec_text_fuzzer": specs,
        "undelivered_fuzzer": [b"n\n", b"n\n\x02\x00\x00\x00\x08\x07"],
        "frame_fuzzer": [b"\x02\x00\x00\x00ab\x00\x00\x00\x00", b"\xff\xff\xff\xff"],
        "sums_fuzzer": [b".metadata 100 12345678\n__0_0.distcp 5000000000 00000007\n"],
    }


def begin(program, directory, start):
    """Writes the initial cases of a fuzzer as files."""
    name = pathlib.Path(program).name
    kept = CORPORA / name
    lines = kept.read_text().split() if kept.exists() else []
    for number, content in enumerate([base64.b64decode(line) for line in lines] + start.get(name, [])):
        pathlib.Path(directory, str(number)).write_bytes(content)


def flags(name):
    return [f"-timeout={CASE_S}", f"-rss_limit_mb={MEMORY_MB}", f"-max_len={LARGEST}",
            f"-artifact_prefix={CACHE}/{name}."]


def run(program, seconds, start, search):
    name = pathlib.Path(program).name
    found = CACHE / name
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as new:
        begin(program, directory, start)
        # The first directory takes what is new.
        directories = [found, directory] if search else [new, directory]
        done = subprocess.run([program, f"-max_total_time={seconds}", *flags(name), "-print_final_stats=1", *directories],
                              capture_output=True, text=True, errors="replace")
        kept = len(list(pathlib.Path(directory).iterdir()))
    stats = dict(line[len("stat::"):].split(":", 1) for line in done.stderr.splitlines() if line.startswith("stat::"))
    cases = stats.get("number_of_executed_units", "?").strip()
    print(f"{name}: {cases} cases, {kept} of them kept", flush=True)
    if done.returncode != 0:
        print(done.stderr[-6000:], flush=True)
    return name, done.returncode == 0


def keep(program, start):
    """Adds new cases to the corpus. Long cases are excluded: they add little, and are hard to read."""
    name = pathlib.Path(program).name
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as least:
        begin(program, directory, start)
        subprocess.run([program, "-merge=1", *flags(name), f"-max_len={LARGEST_KEPT}", least, directory, CACHE / name],
                       check=True, capture_output=True)
        cases = sorted((path.read_bytes() for path in pathlib.Path(least).iterdir()), key=lambda case: (len(case), case))
    cases = [case for case in cases if case][:MOST_KEPT]
    CORPORA.mkdir(exist_ok=True)
    (CORPORA / name).write_text("".join(base64.b64encode(case).decode() + "\n" for case in cases))
    print(f"{name}: {len(cases)} cases kept", flush=True)


def main():
    what, *rest = sys.argv[1:]
    start = seeds()
    if what == "keep":
        for program in rest:
            keep(program, start)
        return
    seconds, result, *programs = rest
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        ended = list(pool.map(lambda program: run(program, seconds, start, what == "search"), programs))
    names = {True: [], False: []}
    for name, passed in ended:
        names[passed].append(name)
    pathlib.Path(result).write_text(json.dumps({"passed": names[True], "failed": names[False]}))


if __name__ == "__main__":
    main()
