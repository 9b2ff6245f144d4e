#!/usr/bin/env python3
"""Makes the outputs, the table and the pictures of docs/plan.md again, in place: docs/plan_examples.py FSDPCTL

Needs neither a coordinator nor a GPU. Texts go between `<!-- begin: NAME -->` and `<!-- end -->` of the page,
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
    return f"{kind} on {layers}" + (", then selective" if kind == "full" else "")


def row(fsdpctl, preset, nodes, more):
    plan = json.loads(run(fsdpctl, [*arguments(preset, nodes, more), "-o", "json", "--picture",
                                    f"img/plan-{preset}-{8 * nodes}.svg"]))
    step, memory = plan["prediction"], plan["memory"]
    activations = next(int(c["bytes"]) for c in memory["components"] if c["name"] == "activations")
    cells = [
        preset + (f" ({more[-1]})" if more else ""), 8 * nodes, f"{int(memory['peak_bytes']) / GIB:.1f} GiB",
        f"{activations / GIB:.1f} GiB", recompute(plan["resolved"]["fsdp"]),
        f"{1e3 * step['step_seconds']:.0f} ms", f"{1e3 * step['exposed_seconds']:.1f} ms",
        f"{step['tokens_per_second'] / (8 * nodes):.0f}", f"{100 * step['mfu']:.1f}%",
    ]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(fsdpctl):
    head = ["model", "ranks", "peak", "of it activations", "recompute", "step", "exposed", "tokens/s a rank", "MFU"]
    rows = [row(fsdpctl, *case) for case in CASES]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *rows])


def main():
    fsdpctl = str(pathlib.Path(sys.argv[1]).resolve())
    (DOCS / "img").mkdir(exist_ok=True)
    page = DOCS / "plan.md"
    text = page.read_text()
    for name, body in {
            "one": console(fsdpctl, arguments("llama3-8b", 1, [])),
            "table": table(fsdpctl),
            "refused": console(fsdpctl, arguments("llama3-70b", 1, [])),
            "search": console(fsdpctl, [*arguments("llama3-70b", 8, ["--set", "train.global_batch=256"]), "--search"]),
    }.items():
        text, count = re.subn(rf"(<!-- begin: {name} -->\n).*?(\n<!-- end -->)",
                              lambda match, body=body: match[1] + body + match[2], text, flags=re.DOTALL)
        if count != 1:
            sys.exit(f"{page}: has {count} parts '{name}'")
    page.write_text(text)


if __name__ == "__main__":
    main()
