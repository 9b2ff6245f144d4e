#!/usr/bin/env python3
"""Regenerates the plans and tables in docs/plan.md, memory.md, the pages on parallelism and fsdpctl.md, in place:
docs/plan_examples.py FSDPCTL

Needs neither a coordinator nor a GPU. Texts go between `<!-- begin: NAME -->` and `<!-- end -->` of a page,
pictures to docs/img.
"""

import json
import pathlib
import re
import subprocess
import sys

DOCS = pathlib.Path(__file__).resolve().parent
GIB = 2**30
CASES = [  # preset, nodes of eight ranks, more flags
    ("llama3-8b", 1, []), ("llama3-8b", 8, []), ("qwen3-8b", 1, []), ("qwen3-8b", 8, []),
    ("llama3-70b", 1, ["--set", "precision.moments=bf16"]), ("llama3-70b", 8, []),
]


def arguments(preset, nodes, more):
    return ["plan", "--offline", "-f", "plan.yaml", "--profile", "h200", "--set", f"name={preset}", "--set",
            f"model.preset={preset}", "--set", f"resources.nodes={nodes}", *more]


def run(fsdpctl, flags):
    done = subprocess.run([fsdpctl, *flags], cwd=DOCS, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    return done.stdout


def console(fsdpctl, flags):
    text = "\n".join(line.rstrip() for line in run(fsdpctl, flags).strip().split("\n"))
    return f"```\n$ fsdpctl {' '.join(flags)}\n{text}\n```"


def recompute(fsdp):
    kind, layers = fsdp["recompute"].removeprefix("RECOMPUTE_").lower(), fsdp.get("recompute_layers")
    if layers is None:
        return kind
    return f"{kind} on {layers} layer{'' if int(layers) == 1 else 's'}" + (", selective on the rest" if kind == "full" else "")


def row(fsdpctl, preset, nodes, more):
    plan = json.loads(run(fsdpctl, [*arguments(preset, nodes, more), "-o", "json", "--picture",
                                    f"img/plan-{preset}-{8 * nodes}.svg"]))
    step, memory = plan["prediction"], plan["memory"]
    activations = next(int(c["bytes"]) for c in memory["components"] if c["name"] == "activations")
    cells = [
        preset + (f" ({more[-1]})" if more else ""), 8 * nodes, f"{int(memory['peak_bytes']) / GIB:.1f} GiB",
        f"{activations / GIB:.1f} GiB", recompute(plan["resolved"]["fsdp"]),
        f"{1e3 * step['step_seconds']:.0f} ms", f"{1e3 * exposed_seconds(step):.1f} ms",
        f"{step['tokens_per_second'] / (8 * nodes):.0f}", f"{100 * step['mfu']:.1f}%",
    ]
    return cells


def as_table(head, rows):
    lines = ["|" + "---|" * len(head)]
    for row in [head, *rows]:
        lines.append("|" + "|".join(f" {cell} " if cell != "" else " " for cell in row) + "|")
    lines[0], lines[1] = lines[1], lines[0]
    return "\n".join(lines)


def asked(fsdpctl, base, settings, *flags):
    """JSON of a plan or a search, even if nothing fits."""
    more = [flag for setting in settings for flag in ("--set", setting)]
    flags = [*base, *more, *flags, "-o", "json"]
    done = subprocess.run([fsdpctl, *flags], cwd=DOCS, text=True, capture_output=True, check=False)
    said = json.loads(done.stdout)
    if "resolved" not in said and "world_size" not in said:
        sys.exit(f"fsdpctl {' '.join(flags)}: {done.stderr}")
    return said


def size(count, digits=1):
    count = int(count)
    return f"{count / GIB:.{digits}f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"


def layer(plan):
    return next(unit for unit in plan["units"] if unit["name"] == "layer.0")


def exchanged(plan):
    count = int(layer(plan).get("exchanged_bytes", 0))
    return size(count, 2) if count else ""


def exposed_seconds(prediction):
    return prediction.get("exposed_seconds", 0) + prediction.get("exchanged_seconds", 0)


def rate(prediction, ranks):
    return f"{prediction['tokens_per_second'] / ranks:,.0f}"


# Llama 3 8B, without its longest sequence.
SHAPE = ("model={llama: {vocab_size: 128256, hidden_size: 4096, intermediate_size: 14336, layers: 32, heads: 32, "
         "kv_heads: 8, rope_theta: 500000}}")


def context_table(fsdpctl):
    rows = []
    for tokens, context in ((8192, 1), (32768, 1), (32768, 2), (32768, 4), (131072, 8)):
        plans = [asked(fsdpctl, arguments("llama3-8b", nodes, ["--set", SHAPE]), [
            f"data.sequence_length={tokens}", f"parallel.context={context}", "fsdp.recompute=none",
            f"train.global_batch={8 * nodes // context}"]) for nodes in (1, 8)]
        step = plans[0]["prediction"]
        rows.append(["8, 64", tokens, context, *(size(plan["memory"]["peak_bytes"]) for plan in plans),
                     f"{step['step_seconds']:.2f} s", rate(step, 8), exchanged(plans[0])])
    return as_table(["ranks", "tokens per sample", "context", "peak on 8 ranks", "peak on 64", "step",
                     "tokens/s per rank", "received per layer"], rows)


def tensor_table(fsdpctl):
    rows = []
    for nodes, tensor in ((1, 1), (1, 2), (1, 4), (1, 8), (8, 1), (8, 4)):
        plan = asked(fsdpctl, arguments("llama3-70b", nodes, []), [
            "precision.moments=bf16", f"parallel.tensor={tensor}", f"train.global_batch={8 * nodes // tensor}"])
        step = plan["prediction"]
        rows.append([8 * nodes, tensor, size(plan["memory"]["peak_bytes"]), recompute(plan["resolved"]["fsdp"]),
                     f"{step['step_seconds']:.2f} s", rate(step, 8 * nodes), size(layer(plan)["gathered_bytes"], 2),
                     exchanged(plan)])
    return as_table(["ranks", "tensor", "peak", "recompute", "step", "tokens/s per rank", "gathered layer",
                     "received per layer"], rows)


def way(fsdpctl, base, mesh, settings):
    """One mesh with its best micro-batch and recompute, as cells below WAY."""
    search = asked(fsdpctl, base, settings, "--search", "--hold", "parallel", "--hold", "fsdp.outer", "--hold",
                   "fsdp.strategy")
    fits = bool(search["found"])
    best = search["found"][0] if fits else search["closest"]
    step, spec = best["prediction"], best["spec"]
    # If nothing fits, all layers recompute.
    layers = recompute(spec["fsdp"]) if fits else recompute(spec["fsdp"]).split()[0]
    head = [mesh, f"{best['micro_batches']} of {spec['train'].get('micro_batch', 1)}", layers]
    peak = size(best["memory"]["peak_bytes"])
    if not fits:
        return [*head, f"{peak}: does not fit", "", "", ""]
    seconds, exposed = step["step_seconds"], exposed_seconds(step)
    digits = 2 if seconds < 100 else 1
    return [*head, peak, f"{seconds:.{digits}f} s", rate(step, int(search["world_size"])), f"{exposed:.{digits}f} s"]


def replicas(count, hybrid=False):
    return [f"fsdp.outer.size={count}", *(["fsdp.outer.strategy=optim"] if hybrid else [])]


ONE_NODE = [  # mesh, strategy, settings
    ("shard 8", "optim", []), ("shard 8", "optim_grads_params", []),
    ("replicate 2 x shard 4", "optim_grads_params", replicas(2)),
    ("shard 4 x context 2", "optim_grads_params", ["parallel.context=2"]),
    ("shard 4 x tensor 2", "optim_grads_params", ["parallel.tensor=2"]),
    ("tensor 8", "optim_grads_params", ["parallel.tensor=8"]), ("shard 8", "no_shard", []),
]
EIGHT_NODES = [  # mesh, settings
    ("shard 64", []), ("shard 32 x context 2", ["parallel.context=2"]),
    ("replicate 2 x shard 32, HFSDP", replicas(2, hybrid=True)), ("shard 32 x tensor 2", ["parallel.tensor=2"]),
    ("replicate 8 x shard 8, HFSDP", replicas(8, hybrid=True)), ("shard 8 x tensor 8", ["parallel.tensor=8"]),
    ("replicate 8 x shard 8, HSDP", replicas(8)),
]
MANY_NODES = [  # mesh, settings
    ("shard 128 x context 2 x tensor 2", ["parallel.context=2", "parallel.tensor=2"]),
    ("shard 128 x tensor 4", ["parallel.tensor=4"]), ("shard 256 x tensor 2", ["parallel.tensor=2"]),
    ("shard 256 x context 2", ["parallel.context=2"]), ("shard 64 x tensor 8", ["parallel.tensor=8"]),
    ("shard 512", []), ("replicate 8 x shard 64, HFSDP", replicas(8, hybrid=True)),
]
WAY = ["mesh", "micro-batches", "recompute", "peak", "step", "tokens/s per rank", "exposed"]


def one_node(fsdpctl):
    base = arguments("llama3-8b", 1, ["--set", "train.global_batch=128"])
    rows = []
    for mesh, strategy, settings in ONE_NODE:
        cells = way(fsdpctl, base, mesh, [f"fsdp.strategy={strategy}", *settings])
        rows.append([cells[0], strategy, *cells[1:]])
    return as_table([WAY[0], "strategy", *WAY[1:]], rows)


def many_nodes(fsdpctl, base, meshes):
    return as_table(WAY, [way(fsdpctl, base, mesh, settings) for mesh, settings in meshes])


def offload_table(fsdpctl):
    """Llama 3 8B on one GPU, whose memory does not fit the optimizer state."""
    rows = []
    for moments in ("fp8", "bf16", "fp32"):
        for micro_batches in (8, 32):
            plan = asked(fsdpctl, ["plan", "--offline", "-f", "plan.yaml", "--profile", "h100"], [
                "resources.ranks_per_node=1", "fsdp={offload: {optimizer: true}}", f"train.global_batch={micro_batches}",
                f"precision={{moments: {moments}, main_grads: bf16}}", "optimizer.clip_norm=1"])
            step, memory = plan["prediction"], plan["memory"]
            rows.append([moments, micro_batches, size(memory["peak_bytes"]), size(memory["host_bytes"]),
                         f"{step['offload_seconds']:.2f} s", f"{step['step_seconds']:.2f} s",
                         f"{step['offload_stall_seconds']:.2f} s", rate(step, 1)])
    return as_table(["moments", "micro-batches", "peak", "host", "transfer each way", "step", "stall",
                     "tokens/s"], rows)


# The part of a plan that most users read first.
def offline(fsdpctl):
    flags = ["plan", "--offline", "-f", "docs/plan.yaml", "--profile", "h200"]
    text = run(fsdpctl, [flag.removeprefix("docs/") for flag in flags])
    parts = [part for part in text.strip().split("\n\n") if part.startswith(("plan:", "memory", "prediction"))]
    body = "\n".join(line.rstrip() for line in "\n\n".join(parts).split("\n"))
    return f"```\n$ fsdpctl {' '.join(flags)}\n{body}\n```"


def table(fsdpctl):
    head = ["model", "ranks", "peak", "activations", "recompute", "step", "exposed", "tokens/s per rank", "MFU"]
    rows = [row(fsdpctl, *case) for case in CASES]
    return as_table(head, rows)


def write(page, parts):
    text = page.read_text()
    for name, body in parts.items():
        text, count = re.subn(rf"(<!-- begin: {name} -->\n).*?(\n<!-- end -->)",
                              lambda match, body=body: match[1] + body + match[2], text, flags=re.DOTALL)
        if count != 1:
            sys.exit(f"{page}: has {count} parts '{name}'")
    page.write_text(text)


def main():
    fsdpctl = str(pathlib.Path(sys.argv[1]).resolve())
    (DOCS / "img").mkdir(exist_ok=True)
    write(DOCS / "plan.md", {
        "one": console(fsdpctl, arguments("llama3-8b", 1, [])),
        "table": table(fsdpctl),
        "refused": console(fsdpctl, arguments("llama3-70b", 1, [])),
        "search": console(fsdpctl, [*arguments("llama3-70b", 8, ["--set", "train.global_batch=256"]), "--search"]),
    })
    write(DOCS / "memory.md", {"offload": offload_table(fsdpctl)})
    write(DOCS / "fsdpctl.md", {"offline": offline(fsdpctl)})
    write(DOCS / "context_parallelism.md", {"context": context_table(fsdpctl)})
    write(DOCS / "tensor_parallelism.md", {"tensor": tensor_table(fsdpctl)})
    write(DOCS / "parallelism.md", {
        "8 ranks": one_node(fsdpctl),
        "64 ranks": many_nodes(fsdpctl, arguments("llama3-70b", 8, ["--set", "train.global_batch=256"]), EIGHT_NODES),
        "512 ranks": many_nodes(fsdpctl, ["plan", "--offline", "-f", "bench/specs/llama3-405b-512.yaml", "--profile",
                                          "h200"], MANY_NODES),
    })


if __name__ == "__main__":
    main()
