#!/usr/bin/env python3
"""Compares training on real text with PyTorch FSDP2, from the same weights on the same batches: loss and gradient norm of each
step.

    tests/perf/text_vs_fsdp2.py --tokens text.u16 --out result docs/bench/specs/llama3-1b-text.yaml
    .python/bin/python tests/perf/text_vs_fsdp2.py --device cpu --text-bytes 1000000 --vocabulary 1024 --fall 1 \\
        --out result docs/bench/specs/tiny-text.yaml

The text is a token file of text_tokens.py, created unless --tokens names one. Ours runs twice, as usual through coordinator,
agent and ranks. The peer is the model of tests/parity with FSDP2. It runs once for each letter of --peers: A, B the same again,
and others that compute the same with different rounding (VARIANTS). It starts from the weights that our engine initializes and
reads the same batches, both written by train_local. The distance between the peer's runs is the tolerance for ours:
tests/parity/curves.py has the rule.

Prints a line per step, then the comparison, and one JSON line. --out gets the curves of each run (ours.json, A.json),
compared.json and curves.svg. Exit code 1 if the loss decreases by less than --fall nats or a curve is not within the tolerance.
The spec contains model.llama and uses AdamW with a constant or cosine schedule; its data.tokens and resources are replaced. Needs
coordinator, agent, fsdpd-rank, fsdpctl and //fsdp/engine:train_local built (FSDPD_BIN: their directory).
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "parity"), str(TESTS / "perf")]

import yaml  # noqa: E402

import text_tokens  # noqa: E402
from curves import WINDOW, compare, distances, fall, nearest, spread, window_means  # noqa: E402
from curves_picture import line, picture  # noqa: E402
from gpu_vs_rival import with_settings  # noqa: E402
from peer import run_peer  # noqa: E402
from same_job import peer_job, resolved, write_start  # noqa: E402

VARIANTS = {
    "A": "eager, flash attention where it can",
    "B": "A again",
    "C": "A with attention by cuDNN where it can, by plain products elsewhere",
    "D": "A with another micro_batch: other sums within products and over micro-batches",
    "E": "A with each layer compiled",
}
PEERS = {"cuda": "ABCDE", "cpu": "ABCD"}
FLASH, OTHERS = ["FLASH_ATTENTION", "MATH"], ["CUDNN_ATTENTION", "MATH"]
OURS = {"ours": "ours", "ours again": "ours-again"}  # And their files.
CURVES = {"losses": "loss", "grad_norms": "gradient norm"}
PATIENCE_S = 3600  # For all runs of the peer.


def progress(what):
    print(f"--- {what}", file=sys.stderr, flush=True)


def spec_with_tokens(options, tokens):
    with open(options.spec, encoding="utf-8") as file:
        spec = with_settings(yaml.safe_load(file), options.set)
    spec["data"]["tokens"] = [{"path": str(tokens.resolve()), "type": "u16"}]
    spec["resources"] = {"nodes": 1, "ranks_per_node": options.ranks, "device": options.device}
    return spec


def train_ours(spec, options, directory):
    """Returns {name: curves}."""
    paths = [directory / f"{name}.yaml" for name in OURS.values()]
    for path in paths:
        path.write_text(yaml.safe_dump(spec))
    command = [sys.executable, TESTS / "perf/run_jobs.py", "--device", options.device, "--slots", options.ranks, *paths]
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)
    runs = {name: {kind: run[kind] for kind in CURVES}
            for name, run in zip(OURS, map(json.loads, done.stdout.splitlines()), strict=True)}
    for name, run in runs.items():
        (options.out / f"{OURS[name]}.json").write_text(json.dumps(run))
    return runs


def other_micro_batch(job, ranks):
    size, samples = job["micro_batch"], job["global_batch"] // ranks
    if size % 2 == 0:
        return size // 2
    return 2 * size if samples % (2 * size) == 0 else size


def variant(letter, job, ranks):
    return {**job, "fused": True, "attention": OTHERS if letter == "C" else FLASH, "compiled": letter == "E",
            "micro_batch": other_micro_batch(job, ranks) if letter == "D" else job["micro_batch"]}


def train_peers(job, options, directory):
    """Returns {letter: curves}."""
    files = {"weights": str(directory / "weights"), "batches": str(directory / "batches")}
    jobs = [{**variant(letter, job, options.ranks), **files, "curves_out": str(options.out / f"{letter}.json")}
            for letter in options.peers]
    curves = run_peer(jobs, options.ranks, options.device, directory, "peers", PATIENCE_S)
    return dict(zip(options.peers, curves, strict=True))


def table(runs):
    """Prints a line per step: the losses of all runs, then their gradient norms."""
    yield "step " + " | ".join("".join(f"{name:>12}" for name in runs) + f"  {what}" for what in CURVES.values())
    for step, values in enumerate(zip(*(zip(*(run[kind] for run in runs.values())) for kind in CURVES)), 1):
        yield f"{step:>4} " + " | ".join("".join(f"{value:12.6f}" for value in row) + " " * (len(what) + 2)
                                         for row, what in zip(values, CURVES.values()))


def verdict(ours, peers):
    """Compares both of our runs for each kind of curve."""
    reported = {}
    for kind in CURVES:
        of_peers = {letter: run[kind] for letter, run in peers.items()}
        reported[kind] = {name: compare(run[kind], of_peers) for name, run in ours.items()}
    return reported


def words(reported):
    for kind, runs in reported.items():
        for name, each in runs.items():
            yield (f"{CURVES[kind]} of {name}: {'within' if each['within'] else 'NOT within'} the peer's spread; mean distance to "
                   f"its nearest run {each['mean_from_nearest']:.3g}, between its runs up to {each['mean_spread']:.3g}; "
                   f"{len(each['windows_outside_end_at'])} of {each['windows']} windows of {WINDOW} steps outside; "
                   f"above the peer's mean by {each['mean_above_peers']:.3g}")
            yield from (f"  |{name} - {letter}|: median {of['median']:.3g}, max {of['max']:.3g}"
                        for letter, of in each["ours_from"].items())
        yield from (f"  |{pair.replace('-', ' - ')}|: median {of['median']:.3g}, max {of['max']:.3g}"
                    for pair, of in next(iter(runs.values()))["peers_apart"].items())


def draw(ours, peers):
    one, again = ours.values()
    for kind, name in CURVES.items():
        last, of_peers = len(one[kind]), {letter: run[kind] for letter, run in peers.items()}
        first_two = [line(f"FSDP2 {letter}", run, color, last, dashed=True)
                     for color, (letter, run) in zip((2, 3), of_peers.items())]
        yield [(name, [line("ours", one[kind], 1, last), *first_two]),
               (f"{name}: distance, mean of {WINDOW} steps",
                [line("ours to nearest FSDP2", nearest(one[kind], of_peers), 1, last),
                 line("FSDP2's runs, at most", spread(of_peers), 2, last),
                 line("ours twice", window_means(distances(one[kind], again[kind])), 3, last, dashed=True)])]


def run(options, directory):
    """Returns whether all comparisons pass."""
    tokens = options.tokens
    if tokens:
        text = text_tokens.read_description(tokens)
    else:
        progress("tokens")
        tokens = options.out / "text.u16"
        text = text_tokens.make(tokens, options.text, options.text_bytes, options.vocabulary)
    spec = spec_with_tokens(options, tokens)
    path = directory / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    whole = resolved(path)
    progress("the start of both")
    write_start(whole, options.device, directory)
    progress("ours")
    ours = train_ours(spec, options, directory)
    progress(f"FSDP2, {len(options.peers)} times")
    peers = train_peers(peer_job(whole), options, directory)

    print("\n".join(table({**ours, **peers})))
    reported = verdict(ours, peers)
    falls = {name: fall(each["losses"]) for name, each in {**ours, **peers}.items()}
    good = falls["ours"] >= options.fall and all(each["within"] for runs in reported.values() for each in runs.values())
    summary = {"what": "text_vs_fsdp2", "spec": spec["name"], "set": options.set, "device": options.device,
               "ranks": options.ranks, "torch": peers["A"]["torch"], "text": text,
               "peers": {letter: f"{VARIANTS[letter]}: {run['attention']}, micro_batch {run['micro_batch']}"
                         for letter, run in peers.items()}, "falls": falls, "good": good,
               "within": {kind: {name: each["within"] for name, each in runs.items()} for kind, runs in reported.items()}}
    (options.out / "compared.json").write_text(json.dumps({**summary, "compared": reported}, indent=1) + "\n")
    (options.out / "curves.svg").write_text(picture(list(draw(ours, peers))))
    print("\n".join(words(reported)))
    print(f"the loss falls by {falls['ours']:.3f} nats, FSDP2's by {falls['A']:.3f}; at least {options.fall:g} are asked for")
    print(json.dumps(summary))
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", metavar="SPEC")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--device", choices=PEERS, default="cuda")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=pathlib.Path, metavar="FILE", help="of text_tokens.py, with FILE.json beside it")
    text_tokens.add_flags(parser)
    parser.add_argument("--peers", help="letters of runs of the peer, A and one more at least; default: all, on CPU ABCD")
    parser.add_argument("--fall", type=float, default=3, help="nats that the loss falls by at least")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="change the spec, for both")
    options = parser.parse_args()
    text_tokens.check_flags(parser, options)
    options.peers = options.peers or PEERS[options.device]
    if not set(options.peers) <= set(VARIANTS) or "A" not in options.peers or len(set(options.peers)) < 2 or \
            len(set(options.peers)) != len(options.peers):
        parser.error(f"--peers {options.peers}: some of {''.join(VARIANTS)}, each once, A and one more at least")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fsdpd-text-") as directory:
        return 0 if run(options, pathlib.Path(directory)) else 1


if __name__ == "__main__":
    sys.exit(main())
