"""Tests of the comparison on real text (tests/perf/text_vs_fsdp2.py), small and in fp32, where both sides agree up to
rounding: its training, output and errors."""

import json
import subprocess
import sys
import xml.etree.ElementTree

import numpy
import pytest

from harness.programs import ROOT

PERF = ROOT / "tests/perf"
STEPS = 24
SMALL = ["model.llama={vocab_size: 300, hidden_size: 32, intermediate_size: 64, layers: 2, heads: 4, kv_heads: 2}",
         f"train.steps={STEPS}", "data.sequence_length=32", "schedule.cosine.warmup_steps=4", "precision.compute=fp32"]
# Of packages, whose versions are pinned: docs change, and with them how far sums of another order lie apart.
TEXT = ["--text-bytes", "40000", "--vocabulary", "300"]


def call(program, *arguments):
    return subprocess.run([sys.executable, str(PERF / program), *map(str, arguments)], capture_output=True, text=True)


def compare(out, *flags):
    settings = [word for each in SMALL for word in ("--set", each)]
    return call("text_vs_fsdp2.py", "--device", "cpu", "--peers", "ABD", "--fall", "0.3", "--out", out, *settings, *flags,
                ROOT / "docs/bench/specs/tiny-text.yaml")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """(finished command, its directory, its verdict)"""
    out = tmp_path_factory.mktemp("out")
    done = compare(out, *TEXT)
    assert (out / "compared.json").exists(), done.stderr
    return done, out, json.loads((out / "compared.json").read_text())


def curves(compared, name):
    return json.loads((compared[1] / f"{name}.json").read_text())


def test_losses_and_gradient_norms_match_per_step(compared):
    for kind in ("losses", "grad_norms"):
        ours, again, theirs, same, other = (curves(compared, name)[kind] for name in ("ours", "ours-again", "A", "B", "D"))
        assert len(set(ours)) == len(ours) == STEPS
        numpy.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=0)
        assert again == ours and same == theirs
        assert other != theirs, "another micro_batch sums in another order"


def test_loss_on_real_text_decreases(compared):
    done, _, reported = compared
    assert reported["falls"]["ours"] > 0.3
    assert f"the loss falls by {reported['falls']['ours']:.3f} nats" in done.stdout


def test_prints_steps_and_exit_code(compared):
    done, _, reported = compared
    rows = [line.split() for line in done.stdout.splitlines()[1:STEPS + 1]]
    assert [int(row[0]) for row in rows] == list(range(1, STEPS + 1))
    assert float(rows[-1][1]) == pytest.approx(curves(compared, "ours")["losses"][-1], abs=1e-6)
    within = all(each for kind in reported["within"].values() for each in kind.values())
    assert done.returncode == (0 if within else 1) and reported["good"] == within
    assert json.loads(done.stdout.splitlines()[-1])["within"] == reported["within"]


def test_picture_has_curves_and_distances(compared):
    drawn = xml.etree.ElementTree.parse(compared[1] / "curves.svg").getroot()
    lines = [each for each in drawn.iter() if each.tag.endswith("polyline")]
    assert len(lines) == 2 * (3 + 3)
    assert {len(each.get("points").split()) for each in lines} == {STEPS, STEPS - 19}


def test_tokenization_is_deterministic(compared, tmp_path):
    done = call("text_tokens.py", *TEXT, tmp_path / "again.u16")
    assert (tmp_path / "again.u16").read_bytes() == (compared[1] / "text.u16").read_bytes()
    assert json.loads(done.stdout) == compared[2]["text"]
    tokens = numpy.fromfile(tmp_path / "again.u16", dtype="<u2")
    assert len(tokens) == compared[2]["text"]["tokens"] and tokens.max() < 300


def test_rejects_tokens_that_differ_from_description(compared, tmp_path):
    for name in ("text.u16", "text.u16.json"):
        (tmp_path / name).write_bytes((compared[1] / name).read_bytes())
    (tmp_path / "text.u16").write_bytes(b"\0\0")
    done = compare(tmp_path / "out", "--tokens", tmp_path / "text.u16")
    assert done.returncode == 1 and "text.u16.json describes another file" in done.stderr


def test_rejects_specs_without_peer_equivalent(compared, tmp_path):
    settings = ("model.llama.head_size=16", "schedule={linear: {warmup_steps: 2}}", "precision.moments=bf16",
                "optimizer.groups=[{params: ['*.wq'], lr_scale: 2}]")
    done = compare(tmp_path / "out", "--tokens", compared[1] / "text.u16",
                   *(word for each in settings for word in ("--set", each)))
    assert done.returncode == 1
    assert [line.split("spec.yaml: ")[1] for line in done.stderr.splitlines() if "the peer" in line] == [
        "model.llama.head_size: the peer's is hidden_size / heads", "optimizer.groups: the peer has nothing like it",
        "schedule.linear: the peer has nothing like it", "precision.moments: the peer knows fp32"]


@pytest.mark.parametrize("flags, fault", [
    (["--peers", "BC"], "A and one more at least"),
    (["--text-bytes", "900000000", "--text", ROOT / "docs/bench"], "bytes of text in"),
    (["--vocabulary", "100"], "--vocabulary: from 257 to 65536"),
])
def test_rejects_flags_without_comparison(tmp_path, flags, fault):
    done = compare(tmp_path, *flags)
    assert done.returncode != 0 and fault in done.stderr
