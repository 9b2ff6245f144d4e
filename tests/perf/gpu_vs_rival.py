#!/usr/bin/env python3
"""A job on this machine's GPUs, by us and by a rival, in turns: step time, tokens/s/GPU, memory, energy. The rival is PyTorch
FSDP2 or NVIDIA's megatron-fsdp, each compiled block by block.

    tests/perf/gpu_vs_rival.py --rounds 2 docs/bench/specs/llama3-8b-s8192.yaml
    tests/perf/gpu_vs_rival.py --set data.sequence_length=4096 --set fsdp.keep_gathered=true docs/bench/specs/llama3-8b-s8192.yaml

Cards are hot when they are measured: a step under load is limited by power, so the first WARM_UP steps are not timed.

Ours runs as it always does, through coordinator, agents and ranks (run_jobs.py); what rivals share is rival_rank.py. The
spec must spell out model.llama and use synthetic tokens. That both compute the same is tests/parity's business; here
timings are printed, one line of JSON a run and one with the ratio, and decide nothing.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import yaml

from gpu_meter import Meter

WARM_UP = 10
# Names as lines have them, and the program of a rank.
RIVALS = {"fsdp2": ("FSDP2", "fsdp2_speed.py"), "megatron-fsdp": ("Megatron-FSDP", "megatron_fsdp_speed.py")}
HERE = pathlib.Path(__file__).resolve().parent


def ours(spec_path, spec, world):
    resources = spec["resources"]
    command = [sys.executable, HERE / "run_jobs.py", "--device", "cuda", "--agents", resources["nodes"], "--slots",
               resources["ranks_per_node"], "--warm-up", WARM_UP, spec_path]
    line = json.loads(subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True).stdout)
    line["tokens_per_second_per_gpu"] = line["tokens_per_second"] / world
    return {"who": "fsdpd", **line}


def theirs(spec, world, options):
    who, program = RIVALS[options.rival]
    train, fsdp, parallel = spec["train"], spec.get("fsdp", {}), spec.get("parallel", {})
    context, tensor = parallel.get("context", 1), parallel.get("tensor", 1)
    job = {"model": spec["model"]["llama"], "micro_batch": train["micro_batch"],
           "sequence_length": spec["data"]["sequence_length"], "warmup": WARM_UP, "steps": train["steps"] - WARM_UP,
           "reduce": options.reduce, "keep_gathered": fsdp.get("keep_gathered", False),
           "recompute": fsdp.get("recompute") == "full",
           "context": context, "tensor": tensor, "async_tensor": options.async_tensor, "fp8": options.fp8,
           "accumulation": train["global_batch"] * context * tensor // (train["micro_batch"] * world)}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "job.json"
        path.write_text(json.dumps(job))
        command = [*options.torchrun.split(), f"--nproc-per-node={world}", HERE / program, path]
        out = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {"who": who, **json.loads(out.strip().splitlines()[-1])}


def with_settings(spec, settings):
    for setting in settings:
        path, _, value = setting.partition("=")
        *folders, name = path.split(".")
        at = spec
        for folder in folders:
            at = at.setdefault(folder, {})
        at[name] = yaml.safe_load(value)
    return spec


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="+", metavar="SPEC")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--reduce", choices=["fp32", "bf16"], default="fp32", help="type of the rival's gradients on the wire")
    parser.add_argument("--async-tensor", action="store_true", help="FSDP2's compiler sends parts of matrices' exchanges beside products")
    parser.add_argument("--fp8", choices=["tensorwise", "rowwise"], help="of a spec in FP8, torchao's recipe for FSDP2")
    parser.add_argument("--rival", choices=RIVALS, default="fsdp2")
    parser.add_argument("--torchrun", default=f"{sys.executable} -m torch.distributed.run")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="change the specs, for both")
    options = parser.parse_args()
    for path in options.specs:
        with open(path, encoding="utf-8") as file:
            spec = with_settings(yaml.safe_load(file), options.set)
        if "llama" not in spec["model"]:
            sys.exit(f"{path}: a rival needs model.llama spelled out")
        measure(spec, options)


def measure(spec, options):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / f"{spec['name']}.yaml"
        path.write_text(yaml.safe_dump(spec))
        world = spec["resources"]["nodes"] * spec["resources"]["ranks_per_node"]
        rival = RIVALS[options.rival][0]
        speeds = {"fsdpd": [], rival: []}
        for _ in range(options.rounds):
            for run in (lambda: ours(path, spec, world), lambda: theirs(spec, world, options)):
                with Meter() as meter:
                    line = run()
                energy = meter.between(line["began_ns"], line["ended_ns"])
                if energy:
                    milliseconds = line.get("step_ms_median") or line["step_ms"]
                    energy["joules_a_step_and_gpu"] = round(energy["watts"] * milliseconds / 1e3, 1)
                print(json.dumps({**line, **energy}), flush=True)
                speeds[line["who"]].append(line["tokens_per_second_per_gpu"])
        medians = {who: statistics.median(each) for who, each in speeds.items()}
        print(json.dumps({"spec": spec["name"], "set": options.set, "ratio": medians["fsdpd"] / medians[rival], **medians}), flush=True)


if __name__ == "__main__":
    main()
