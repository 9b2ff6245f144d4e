#!/usr/bin/env python3
"""Measures the matrix products of a layer in FP8, by recipe, next to bf16, on this machine's GPU: time, power, energy, clock and
error. Also measures writing a tensor in FP8 in both orders, which the backward of the next product needs on Hopper.

    tests/perf/fp8_products.py            # Llama 8B's layer, 8192 tokens
    tests/perf/fp8_products.py --seconds 0.5 --tokens 4096

Products are PyTorch's scaled_mm, from cuBLASLt or CUTLASS. All twelve products of a layer (forward, input gradient and weight
gradient of four matrices) run in turn until the GPU is warm, then the recipes alternate. Values are normally distributed, because
products of zeros use less power. Errors are relative to the norm of the fp32 product of the same bf16 tensors. Prints one JSON line
for each; timings decide nothing.
"""

import argparse
import json
import statistics
import time

import torch
import triton
import triton.language as tl

from gpu_meter import Meter

# (out, in) of a layer's matrices: packed heads, output, packed gate and up, down.
MATRICES = {"qkv": (6144, 4096), "output": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
E4M3 = torch.float8_e4m3fn
E4M3_MAX = torch.finfo(E4M3).max
ROUNDS = 3


def per_tensor(x):
    scale = x.abs().amax().float().clamp(min=1e-12) / E4M3_MAX
    return (x.float() / scale).clamp(-E4M3_MAX, E4M3_MAX).to(E4M3), scale


def per_row(x):
    scale = x.abs().amax(1, keepdim=True).float().clamp(min=1e-12) / E4M3_MAX
    return (x.float() / scale).clamp(-E4M3_MAX, E4M3_MAX).to(E4M3), scale


def by_blocks(x, rows):
    """Blocks of rows x 128 with scales stored by column, as products of activations require."""
    blocks = x.float().view(x.shape[0] // rows, rows, x.shape[1] // 128, 128)
    scale = blocks.abs().amax((1, 3), keepdim=True).clamp(min=1e-12) / E4M3_MAX
    values = (blocks / scale).clamp(-E4M3_MAX, E4M3_MAX).view(x.shape).to(E4M3)
    scale = scale[:, 0, :, 0]
    return values, scale.t().contiguous().t() if rows == 1 else scale.contiguous()


def product(a, b, recipe, fast, weight):
    """a x b^T of bf16 matrices, both quantized along the reduction; returns a function that repeats it."""
    if recipe == "bf16":
        return lambda: torch.mm(a, b.t())
    if recipe == "tensorwise":
        (qa, sa), (qb, sb) = per_tensor(a), per_tensor(b)
        return lambda: torch._scaled_mm(qa, qb.t(), sa, sb, out_dtype=torch.bfloat16, use_fast_accum=fast)
    if recipe == "rowwise":
        (qa, sa), (qb, sb) = per_row(a), per_row(b)
        return lambda: torch._scaled_mm(qa, qb.t(), sa, sb.t(), out_dtype=torch.bfloat16, use_fast_accum=fast)
    (qa, sa), (qb, sb) = by_blocks(a, 1), by_blocks(b, 128 if weight else 1)
    return lambda: torch._scaled_mm(qa, qb.t(), sa, sb.t(), out_dtype=torch.bfloat16, use_fast_accum=fast)


def layer(tokens, values):
    """Operands of a layer's products: name -> (a, b, whether b is a weight)."""
    found = {}
    for name, (n, k) in MATRICES.items():
        x, dy = values(tokens, k), values(tokens, n)
        w = torch.randn(n, k, device="cuda").mul_(0.02).bfloat16()
        found[f"{name} forward"] = (x, w, True)
        found[f"{name} inputs"] = (dy, w.t().contiguous(), True)
        found[f"{name} weights"] = (dy.t().contiguous(), x.t().contiguous(), False)
    return found


def normal(rows, columns):
    return torch.randn(rows, columns, device="cuda").bfloat16()


def with_outliers(rows, columns):
    """Scales some columns by 50, as in hidden states, and makes rows unequal."""
    x = torch.randn(rows, columns, device="cuda") * torch.rand(rows, 1, device="cuda").mul_(3).exp_()
    x[:, torch.randperm(columns, device="cuda")[: columns // 500]] *= 50
    return x.bfloat16()


def run_for(calls, seconds):
    began, rounds = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        for call in calls:
            call()
        torch.cuda.synchronize()
        rounds += 1
    return rounds


def time_layers(layers, seconds, flops):
    """Times recipes in turn on a warm GPU."""
    lines = {recipe: [] for recipe in layers}
    with Meter() as meter:
        for _ in range(ROUNDS):
            for recipe, calls in layers.items():
                run_for(calls, seconds)
                began = time.time_ns()
                rounds = run_for(calls, seconds)
                ended = time.time_ns()
                lines[recipe].append({"ms": (ended - began) / 1e6 / rounds, **meter.between(began, ended)})
    for recipe, runs in lines.items():
        ms = statistics.median(run["ms"] for run in runs)
        line = {"recipe": recipe, "layer_ms": round(ms, 3), "tflops": round(flops / ms / 1e9),
                "runs_ms": [round(run["ms"], 3) for run in runs]}
        if "watts" in runs[0]:
            watts = statistics.median(run["watts"] for run in runs)
            line |= {"watts": watts, "sm_mhz": runs[-1]["sm_mhz"], "layer_joules": round(watts * ms / 1e3, 3)}
        print(json.dumps(line), flush=True)


def difference(call, exact):
    return ((call().float() - exact).norm() / exact.norm()).item()


@triton.jit
def both_orders(x, scale, out, turned, rows, columns, tile: tl.constexpr):
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    values = tl.load(x + row[:, None].to(tl.int64) * columns + column[None, :]).to(tl.float32) * tl.load(scale)
    values = tl.minimum(tl.maximum(values, -448.0), 448.0).to(tl.float8e4nv)
    tl.store(out + row[:, None].to(tl.int64) * columns + column[None, :], values)
    tl.store(turned + column[:, None].to(tl.int64) * rows + row[None, :], tl.trans(values))


def time_writing(tokens):
    """Times one pass that writes a tensor in FP8 in both orders with a known scale, next to a copy of its bytes."""
    for columns in (4096, 14336, 28672):
        x, scale = normal(tokens, columns), torch.ones((), device="cuda")
        out, turned = torch.empty(tokens, columns, device="cuda", dtype=E4M3), torch.empty(columns, tokens, device="cuda", dtype=E4M3)
        grid = (tokens // 128, columns // 128)
        call = lambda: both_orders[grid](x, scale, out, turned, tokens, columns, 128, num_warps=8)
        call()
        assert torch.equal(out.t().contiguous().view(torch.uint8), turned.view(torch.uint8))
        assert torch.equal(out.view(torch.uint8), x.float().clamp(-448, 448).to(E4M3).view(torch.uint8))
        source, target = x.view(torch.uint8).flatten(), torch.empty(2 * x.numel(), device="cuda", dtype=torch.uint8)
        both, copy = (triton.testing.do_bench(f, warmup=100, rep=300, return_mode="median") for f in (call, lambda: target.copy_(source)))
        largest = triton.testing.do_bench(lambda: torch.linalg.vector_norm(x, float("inf")), warmup=100, rep=300, return_mode="median")
        print(json.dumps({"write": [tokens, columns], "both_orders_ms": round(both, 4), "copy_of_as_many_bytes_ms": round(copy, 4),
                          "largest_of_it_ms": round(largest, 4)}), flush=True)


def grouped(tokens):
    """Whether PyTorch's grouped product supports FP8 here, and its time next to bf16: 16 experts' gate and up of
    Qwen3-30B-A3B."""
    groups, n, k = 16, 1536, 2048
    ends = torch.arange(1, groups + 1, device="cuda", dtype=torch.int32) * (tokens // groups)
    a, b = normal(tokens, k), torch.randn(groups, n, k, device="cuda").mul_(0.02).bfloat16()
    (qa, sa), parts = per_row(a), [per_row(part) for part in b]
    qb, sb = torch.stack([part for part, _ in parts]), torch.stack([scale[:, 0] for _, scale in parts])
    calls = {"bf16": lambda: torch._grouped_mm(a, b.transpose(1, 2), offs=ends),
             "rowwise": lambda: torch._scaled_grouped_mm(qa, qb.transpose(1, 2), sa[:, 0].contiguous(), sb, offs=ends,
                                                         out_dtype=torch.bfloat16, use_fast_accum=True)}
    exact = calls["bf16"]().float()
    for recipe, call in calls.items():
        ms = triton.testing.do_bench(call, warmup=300, rep=500, return_mode="median")
        print(json.dumps({"grouped": recipe, "ms": round(ms, 4), "tflops": round(2 * tokens * n * k / ms / 1e9),
                          "off_by": round(difference(call, exact), 5)}), flush=True)


def or_why(make):
    try:
        call = make()
        call()
        torch.cuda.synchronize()
        return call, None
    except (RuntimeError, ValueError, NotImplementedError) as why:
        return None, str(why).splitlines()[0][:160]


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--tokens", type=int, default=8192, help="rows of activations; a multiple of 128")
    flags.add_argument("--seconds", type=float, default=3.0, help="each recipe's warm-up, and each of its three runs")
    options = flags.parse_args()
    torch.manual_seed(1)
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "tokens": options.tokens}), flush=True)

    recipes = [("bf16", False), ("tensorwise", True), ("tensorwise", False), ("rowwise", True), ("rowwise", False), ("blockwise", False),
               ("blockwise", True)]
    layers = {}
    for kind, values in (("outliers", with_outliers), ("normal", normal)):
        operands = layer(options.tokens, values)
        exact = {name: torch.mm(a.float(), b.float().t()) for name, (a, b, _) in operands.items() if name.startswith("output")}
        layers = {}
        for recipe, fast in recipes:
            label = recipe + (" fast" if fast else "")
            made = {name: or_why(lambda a=a, b=b, w=w: product(a, b, recipe, fast, w)) for name, (a, b, w) in operands.items()}
            refused = {why for _, why in made.values() if why}
            if refused:
                print(json.dumps({"recipe": label, "refused": sorted(refused)}), flush=True)
                continue
            layers[label] = [call for call, _ in made.values()]
            print(json.dumps({"recipe": label, "values": kind,
                              "off_by": {name: round(difference(made[name][0], exact[name]), 5) for name in exact}}), flush=True)
        del exact
    flops = 3 * sum(2 * options.tokens * n * k for n, k in MATRICES.values())
    time_layers(layers, options.seconds, flops)
    time_writing(options.tokens)
    grouped(options.tokens)


if __name__ == "__main__":
    main()
