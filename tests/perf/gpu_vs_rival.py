#!/usr/bin/env python3
"""Compares a job on this machine's GPUs with another framework: step time, tokens/s/GPU, memory, energy. The rival is PyTorch
FSDP2 or NVIDIA's megatron-fsdp, each compiled block by block; of a job with train.lora on one GPU, only PyTorch.

    tests/perf/gpu_vs_rival.py --rounds 2 docs/bench/specs/llama3-8b-s8192.yaml
    tests/perf/gpu_vs_rival.py --set data.sequence_length=4096 --set fsdp.keep_gathered=true docs/bench/specs/llama3-8b-s8192.yaml
    tests/perf/gpu_vs_rival.py --hf ./llama3-8b exported-8b.yaml    # a package next to FSDP2 with the same module
    tests/perf/gpu_vs_rival.py --or fsdp.keep_gathered=true docs/bench/specs/llama3-8b-s8192.yaml    # each side's faster variant

GPUs are warm when they are measured: power limits a step under load, so the first steps (--warm-up) are not timed.

Ours runs as usual through coordinator, agents and ranks (run_jobs.py); rival_rank.py has the common part of the rivals. The
spec must contain model.llama, or, with --hf, model.package with an absolute path, and use synthetic tokens. tests/parity tests that both compute the same. Prints one JSON line per run
and one with the ratio; timings decide nothing. mfu is the model's FLOPs over the GPU's peak, with causal attention counted half;
mfu_attention_whole counts it without a mask. Neither counts recomputation. energy_over_time is the ratio of energy per step (ours
over theirs) times the ratio of speed (ours over theirs): below 1, we save more energy than time explains.
"""

import argparse
import copy
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import yaml

from gpu_meter import Meter

PEAK_FLOPS = 989.4e12  # Of a Hopper SXM card in bf16, dense, by its data sheet; FP8 steps are held to it too.
# Names as lines have them, and the program of a rank.
RIVALS = {"fsdp2": ("FSDP2", "fsdp2_speed.py"), "megatron-fsdp": ("Megatron-FSDP", "megatron_fsdp_speed.py")}
WITH_LORA = ("PyTorch with LoRA", "lora_speed.py")
OF_TRANSFORMERS = ("FSDP2 of transformers", "fsdp2_transformers_speed.py")
HERE = pathlib.Path(__file__).resolve().parent


def ours(spec_path, spec, world, warm_up):
    resources = spec["resources"]
    command = [sys.executable, HERE / "run_jobs.py", "--device", "cuda", "--agents", resources["nodes"], "--slots",
               resources["ranks_per_node"], "--warm-up", warm_up, spec_path]
    if "package" in spec["model"]:
        command += ["--plugin-dir", pathlib.Path(spec["model"]["package"]["path"]).parent]
    line = json.loads(subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True).stdout)
    line["tokens_per_second_per_gpu"] = line["tokens_per_second"] / world
    return {"who": "fsdpd", **line}


def flops_of_a_token(m, sequence_length):
    """FLOPs of forward and backward with unmasked attention, and the attention part of them."""
    hidden, layers = m["hidden_size"], m["layers"]
    head = m.get("head_size", hidden // m["heads"])
    attention = hidden * head * (2 * m["heads"] + 2 * m["kv_heads"])
    dense = 3 * hidden * m["intermediate_size"]
    experts = m.get("experts", {})
    dense_layers = experts.get("dense_layers", 0) if experts else layers
    width = experts.get("intermediate_size", m["intermediate_size"])
    routed = hidden * (3 * (width * experts.get("per_token", 0) + experts.get("shared_intermediate_size", 0)) + experts.get("count", 0))
    weights = layers * attention + dense_layers * dense + (layers - dense_layers) * routed + hidden * m["vocab_size"]
    scores = 12 * layers * m["heads"] * head * sequence_length
    return 6 * weights + scores, scores


def utilization(line, spec):
    if "llama" not in spec["model"]:
        return {}
    whole, scores = flops_of_a_token(spec["model"]["llama"], spec["data"]["sequence_length"])
    tokens = line["tokens_per_second_per_gpu"]
    return {"mfu": round((whole - scores / 2) * tokens / PEAK_FLOPS, 4), "mfu_attention_whole": round(whole * tokens / PEAK_FLOPS, 4)}


def rival_of(options, spec):
    if "lora" in spec["train"]:
        return WITH_LORA
    return OF_TRANSFORMERS if options.hf else RIVALS[options.rival]


def adapters_of(lora):
    rank = lora["rank"]
    return {"rank": rank, "scale": lora.get("alpha", 2 * rank) / rank}


def theirs(spec, world, options):
    who, program = rival_of(options, spec)
    train, fsdp, parallel = spec["train"], spec.get("fsdp", {}), spec.get("parallel", {})
    context, tensor = parallel.get("context", 1), parallel.get("tensor", 1)
    job = {"model": spec["model"].get("llama"), "hf": options.hf, "chunks": options.loss_chunks, "micro_batch": train["micro_batch"],
           "sequence_length": spec["data"]["sequence_length"], "warmup": options.warm_up, "steps": train["steps"] - options.warm_up,
           "reduce": options.reduce, "keep_gathered": fsdp.get("keep_gathered", False),
           "recompute": fsdp.get("recompute") == "full", "offload": fsdp.get("offload", {}).get("optimizer", False),
           "context": context, "tensor": tensor, "async_tensor": options.async_tensor, "fp8": options.fp8,
           "accumulation": train["global_batch"] * context * tensor // (train["micro_batch"] * world)}
    if "lora" in train:
        job["lora"] = adapters_of(train["lora"])
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "job.json"
        path.write_text(json.dumps(job))
        command = [*options.torchrun.split(), f"--nproc-per-node={world}", HERE / program, path]
        out = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True).stdout
    flags = {name: job[name] for name in ("reduce", "keep_gathered", "recompute", "offload", "async_tensor", "fp8") if job[name]}
    return {"who": who, "flags": flags, **json.loads(out.strip().splitlines()[-1])}


def with_settings(spec, settings):
    for setting in settings:
        path, _, value = setting.partition("=")
        *directories, name = path.split(".")
        at = spec
        for directory in directories:
            at = at.setdefault(directory, {})
        at[name] = yaml.safe_load(value)
    return spec


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="+", metavar="SPEC")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm-up", type=int, default=10, help="steps that are not timed")
    parser.add_argument("--reduce", choices=["fp32", "bf16"], default="fp32", help="type of the rival's gradients on the wire")
    parser.add_argument("--async-tensor", action="store_true", help="FSDP2's compiler sends parts of matrices' exchanges beside products")
    parser.add_argument("--fp8", choices=["tensorwise", "rowwise"], help="of a spec in FP8, torchao's recipe for FSDP2")
    parser.add_argument("--rival", choices=RIVALS, default="fsdp2")
    parser.add_argument("--hf", metavar="DIR", help="FSDP2 trains the model of transformers in this directory; specs may have model.package")
    parser.add_argument("--loss-chunks", type=int, default=8, help="with --hf, chunks of tokens in which the loss is computed")
    parser.add_argument("--torchrun", default=f"{sys.executable} -m torch.distributed.run")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="change the specs, for both")
    parser.add_argument("--or", action="append", default=[], metavar="FIELD=VALUE", dest="other",
                        help="both sides with these changes too; the ratio is of each side's faster way")
    options = parser.parse_args()
    for path in options.specs:
        with open(path, encoding="utf-8") as file:
            spec = with_settings(yaml.safe_load(file), options.set)
        offload = spec.get("fsdp", {}).get("offload", {})
        if offload and (options.rival != "fsdp2" or "activation_layers" in offload):
            sys.exit(f"{path}: of the rivals FSDP2 offloads, and the optimizer alone")
        if "llama" not in spec["model"] and not options.hf:
            sys.exit(f"{path}: a rival needs model.llama spelled out, or --hf")
        if "lora" in spec["train"] and spec["resources"]["nodes"] * spec["resources"]["ranks_per_node"] > 1:
            sys.exit(f"{path}: the rival with adapters runs on one GPU")
        if spec["train"].get("lora", {}).keys() - {"rank", "alpha", "base_type"}:
            sys.exit(f"{path}: the rival has adapters on all matrices, with scale alpha / rank")
        measure(spec, options)


def run_once(who, spec, options):
    world = spec["resources"]["nodes"] * spec["resources"]["ranks_per_node"]
    with tempfile.TemporaryDirectory() as directory, Meter() as meter:
        if who == "fsdpd":
            path = pathlib.Path(directory) / f"{spec['name']}.yaml"
            path.write_text(yaml.safe_dump(spec))
            line = ours(path, spec, world, options.warm_up)
        else:
            line = theirs(spec, world, options)
        energy = meter.between(line["began_ns"], line["ended_ns"])
    if energy:
        milliseconds = line.get("step_ms_median") or line["step_ms"]
        energy["joules_a_step_and_gpu"] = round(energy["watts"] * milliseconds / 1e3, 1)
    return {**line, **utilization(line, spec), **energy}


def measure(spec, options):
    """Alternates the sides. Compares medians over rounds of each side's fastest variant."""
    rival = rival_of(options, spec)[0]
    ways = [spec, with_settings(copy.deepcopy(spec), options.other)] if options.other else [spec]
    lines = {(who, way): [] for who in ("fsdpd", rival) for way in range(len(ways))}
    for _ in range(options.rounds):
        for who, way in sorted(lines, key=lambda each: each[1]):
            line = run_once(who, ways[way], options)
            print(json.dumps({"set": options.set + (options.other if way else []), **line}), flush=True)
            lines[who, way].append(line)

    def median(key, name):
        return statistics.median(line[name] for line in lines[key])

    best = {who: max((key for key in lines if key[0] == who), key=lambda key: median(key, "tokens_per_second_per_gpu"))
            for who in ("fsdpd", rival)}
    speeds = {who: median(key, "tokens_per_second_per_gpu") for who, key in best.items()}
    reported = {"spec": spec["name"], "set": options.set, "ratio": round(speeds["fsdpd"] / speeds[rival], 4), **speeds}
    if options.other:
        reported["best"] = {who: options.other if way else [] for who, (_, way) in best.items()}
    if all("joules_a_step_and_gpu" in line for each in lines.values() for line in each):
        energy = median(best["fsdpd"], "joules_a_step_and_gpu") / median(best[rival], "joules_a_step_and_gpu")
        reported["energy_over_time"] = round(energy * reported["ratio"], 4)
    reported["memory_ratio"] = round(median(best["fsdpd"], "reserved_bytes") / median(best[rival], "reserved_bytes"), 4)
    print(json.dumps(reported), flush=True)


if __name__ == "__main__":
    main()
