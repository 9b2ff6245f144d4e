"""Tests of the Python spec parser: it returns the same messages, violations and positions as fsdpctl."""

import hashlib
import json
import math
import pathlib
import zipfile

import fsdpd
import pytest
import yaml

from clients.jobs import environment, small, written
from harness.cluster import fsdpctl
from harness.programs import ROOT
from harness.specs import to_message

# Rules of texts and of what fields take; the others are about what values mean together, and the coordinator's.
OF_TEXT = {"alias", "bad_key", "duplicate_field", "no_value", "not_utf8", "out_of_range", "path_of_node", "several_documents",
           "syntax", "tag", "too_deep", "two_of_oneof", "unknown_field", "unknown_value", "wrong_type"}

GOOD = yaml.safe_dump(small(), sort_keys=False)

BAD = {
    "a misspelt field": GOOD.replace("steps: 5", "stps: 5"),
    "a field that nobody knows": GOOD + "zebra: 1\n",
    "a field without its unit": GOOD + "fsdp: {memory_budget: 1GiB}\n",
    "a nested field": GOOD.replace("layers: 2", "layers: 2\n    layer_count: 3"),
    "a text for a number": GOOD.replace("steps: 5", "steps: many"),
    "a fraction for a whole number": GOOD.replace("steps: 5", "steps: 5.5"),
    "a number beyond all": GOOD.replace("steps: 5", "steps: 99999999999999999999"),
    "a number that int() refuses": GOOD.replace("steps: 5", f"steps: {'9' * 5000}"),
    "digits of another script": GOOD.replace("steps: 5", "steps: \u0661\u0662"),
    "a size in digits of another script": GOOD + "fsdp: {prefetch_bytes: \uff11KiB}\n",
    "a size with an underscore": GOOD + "fsdp: {prefetch_bytes: 1_0KiB}\n",
    "a double beyond all": GOOD.replace("lr: 0.01", "lr: 1e999"),
    "not a number": GOOD.replace("lr: 0.01", "lr: .nan"),
    "a list for a value": GOOD.replace("steps: 5", "steps: [5]"),
    "a value for a list": GOOD + "telemetry: {trace_steps: 3}\n",
    "a list with a wrong value": GOOD + "telemetry: {trace_steps: [1, two, 3, four]}\n",
    "a value for a group": GOOD.replace("synthetic: {}", "synthetic: yes"),
    "no value": GOOD.replace("steps: 5", "steps:"),
    "no value of a group": GOOD + "fsdp:\n",
    "a path of a shell and one of a store": GOOD + "checkpoint: {dir: ~/runs, load: 's3://b/run'}\n",
    "an empty text": GOOD.replace("name: tiny", "name: ''"),
    "an unknown word": GOOD.replace("device: cpu", "device: tpu"),
    "a word of another case": GOOD.replace("device: cpu", "device: CPU"),
    "an enum by its number": GOOD.replace("device: cpu", "device: 1"),
    "a quoted boolean": GOOD + "fsdp: {}\ntelemetry: {memory_snapshot: 'true'}\n",
    "a boolean of old YAML": GOOD + "telemetry: {memory_snapshot: yes}\n",
    "a field twice": GOOD + "name: again\n",
    "a field twice in both spellings": GOOD.replace("micro_batch: 1", "micro_batch: 1\n  microBatch: 1"),
    "two of a oneof": GOOD.replace("model:\n", "model:\n  preset: tiny\n"),
    "a variable without a value": GOOD + "env: {NCCL_DEBUG: }\n",
    "a variable that is a list": GOOD + "env: {NCCL_DEBUG: [1]}\n",
    "an alias": GOOD + "fsdp: &x {}\nparallel: *x\n",
    "a tag": GOOD + "fsdp: !x {}\n",
    "two documents": GOOD + "---\n" + GOOD,
    "a list for a key": GOOD + "[1, 2]: 3\n",
    "nothing": "",
    "several violations": GOOD.replace("steps: 5", "steps: x").replace("layers: 2", "layrs: 2") + "zebra: 1\n",
}


def found_by_fsdpctl(cluster, path, of_text=True):
    done = fsdpctl("validate", "-f", path, "-o", "json", server=cluster.address, env=environment(cluster))
    return sorted((fault["line"], fault["column"], fault["rule"], fault["field"])
                  for fault in json.loads(done.out)["violations"] if not of_text or fault["rule"] in OF_TEXT)


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_text_faults_match_fsdpctl(shared, tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(fsdpd.SpecError) as raised:
        fsdpd.read_spec(path)
    assert found_by_fsdpctl(shared, path) == sorted(
        (fault.line, fault.column, fault.rule, fault.field) for fault in raised.value.violations)
    assert all(str(fault.line) in str(raised.value) and fault.reason in str(raised.value) for fault in raised.value.violations)


RULES = GOOD.replace("lr: 0.01", "lr: -1").replace("micro_batch: 1", "micro_batch: 0").replace("layers: 2", "layers: 0")


@pytest.mark.parametrize("text", [RULES, RULES.replace("vocab_size", "vocab_sise"),
                                  RULES + "fsdp: {stratgy: none}\nenv: {NCCL_DEBUG: 'a b', LD_PRELOAD: x}\n"],
                         ids=["rules", "with a misspelt size", "with a misspelt strategy and variables"])
def test_rule_fault_places_match_fsdpctl(shared, tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    found = found_by_fsdpctl(shared, path, of_text=False)
    assert len({line for line, *_ in found}) >= 3
    with fsdpd.Client(environ=environment(shared)) as client:
        with pytest.raises(fsdpd.SpecError) as raised:
            client.submit(path)
        for violations in (raised.value.violations, client.validate(path)):
            assert sorted((fault.line, fault.column, fault.rule, fault.field) for fault in violations) == found


# No cluster has such nodes: a job of this stays where it is.
WAITING = small(resources={"nodes": 50, "ranks_per_node": 2, "device": "cpu"}, train={"global_batch": 100})

GOOD_WAYS = {
    "as it is": "",
    "numbers": "schedule: {cosine: {warmup_steps: 1e0, min_lr_ratio: 1}}\n",
    "sizes": "fsdp: {prefetch_bytes: 1.5MiB}\n",
    "auto": "fsdp: {strategy: auto, recompute: auto}\n",
    "a full name": "fsdp: {strategy: STRATEGY_OPTIM_GRADS}\n",
    "camelCase": "telemetry: {traceSteps: [1, 2]}\n",
    "quoted numbers": "priority: '7'\n",
    "a zero that is the default": "priority: 0\n",
    "variables by name": "env: {NCCL_DEBUG: WARN, NCCL_IB_TIMEOUT: 22, NCCL_P2P_DISABLE: 1, NCCL_IB_HCA: ''}\n",
    "variables as a list": "env: [{name: NCCL_DEBUG, value: WARN}]\n",
    "relative paths": "checkpoint: {dir: saved/}\n",
    "json": None,
}


@pytest.mark.parametrize("more", GOOD_WAYS.values(), ids=GOOD_WAYS.keys())
def test_parsed_spec_matches_fsdpctl(shared, tmp_path, more):
    path = tmp_path / "good.yaml"
    path.write_text(json.dumps(WAITING) if more is None else yaml.safe_dump(WAITING) + more)
    submit = fsdpctl("submit", "-f", path, "-o", "json", server=shared.address, env=environment(shared))
    with fsdpd.Client(environ=environment(shared)) as client:
        job = client.get(json.loads(submit.expect(0).out)["id"])
        client.cancel(job.id)
        assert fsdpd.read_spec(path) == job.spec


def test_text_mapping_and_message_are_equivalent():
    message = to_message(small())
    assert fsdpd.read_spec(small()) == fsdpd.read_spec(GOOD) == fsdpd.read_spec(message) == message


def test_paths_are_relative_to_spec_directory(tmp_path):
    tokens = [{"path": "a.bin", "type": "u8", "mask": "masks/a"}]
    made = small(data={"synthetic": None, "tokens": tokens}, checkpoint={"dir": "./saved"})
    (tmp_path / "specs").mkdir()
    read = fsdpd.read_spec(written(tmp_path / "specs", made))
    assert read.data.tokens[0].path == str(tmp_path / "specs/a.bin")
    assert read.data.tokens[0].mask == str(tmp_path / "specs/masks/a") and read.checkpoint.dir == str(tmp_path / "specs/saved")
    assert fsdpd.read_spec(made).data.tokens[0].path == str(pathlib.Path.cwd() / "a.bin")


def test_keeps_parent_path_for_coordinator(tmp_path):
    read = fsdpd.read_spec(written(tmp_path, small(checkpoint={"dir": "../saved"})))
    assert read.checkpoint.dir == f"{tmp_path}/../saved"


@pytest.mark.parametrize("value, rule", [(math.nan, "wrong_type"), (math.inf, "wrong_type"), (None, "no_value"),
                                         ([1], "wrong_type"), ("x", "wrong_type"), (True, "wrong_type"),
                                         pytest.param(10**5000, "out_of_range", id="5,001 digits")])
def test_mapping_error_names_field(value, rule):
    with pytest.raises(fsdpd.SpecError) as raised:
        fsdpd.read_spec(small(optimizer={"adamw": {"lr": value}}))
    assert [(fault.rule, fault.field) for fault in raised.value.violations] == [(rule, "optimizer.adamw.lr")]


# The first was reported at 1:1, over several lines.
@pytest.mark.parametrize("text, reported", [
    ("name: \u00e9\nmodel: a\x07b\n", "<text>:2:9: the character U+0007 is not allowed in YAML; remove it [syntax]"),
    ("name: x\nmodel: {a: b: c}\n", "<text>:2:13: did not find expected ',' or '}' [syntax]")])
def test_syntax_error_has_line_and_column(text, reported):
    with pytest.raises(fsdpd.SpecError) as raised:
        fsdpd.read_spec(text)
    assert str(raised.value).splitlines()[1:] == [reported]


def package(path, model=None, **others):
    manifest = {"schema": 1, "model": {"vocabSize": "96", **(model or {})}, **others}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))


def test_package_is_read_from_its_file(tmp_path):
    package(tmp_path / "mine.fsdpd", {"sequenceLength": "32"})
    made = {**small(), "model": {"package": {"path": "./mine.fsdpd"}}}
    read = fsdpd.read_spec(written(tmp_path, made)).model.package
    assert (read.path, read.vocab_size, read.sequence_length) == (str(tmp_path / "mine.fsdpd"), 96, 32)
    text = zipfile.ZipFile(tmp_path / "mine.fsdpd").read("manifest.json")
    assert read.digest == hashlib.sha256(text).hexdigest()
    made["model"]["package"] = {"path": "/nowhere/mine.fsdpd", "digest": "abc"}
    assert fsdpd.read_spec(written(tmp_path, made)).model.package.digest == "abc"  # The nodes have it.


@pytest.mark.parametrize("content, model, reported", [
    (b"text", {}, "is not a package of fsdpctl model export, or is incomplete: File is not a zip file"),
    ({"schema": 2}, {}, "has a newer format (got schema 2, want 1)"),
    ({"no_such_field": 2}, {}, "no_such_field"),
    ({}, {"vocab_size": 97}, "the spec has other values than the package"),
])
def test_package_that_cannot_be_used_is_reported(tmp_path, content, model, reported):
    path = tmp_path / "mine.fsdpd"
    path.write_bytes(content) if isinstance(content, bytes) else package(path, **content)
    made = {**small(), "model": {"package": {"path": "mine.fsdpd", **model}}}
    with pytest.raises(fsdpd.SpecError) as raised:
        fsdpd.read_spec(written(tmp_path, made))
    assert [fault.field.split(".")[:2] for fault in raised.value.violations] == [["model", "package"]]
    assert reported in str(raised.value)


@pytest.mark.parametrize("path", [
    *sorted((ROOT / "deploy/examples").glob("*.yaml")), *sorted((ROOT / "docs/bench/specs").glob("*.yaml"))], ids=lambda path: path.name)
def test_reads_all_specs_of_repository(path):
    assert fsdpd.read_spec(path).name
