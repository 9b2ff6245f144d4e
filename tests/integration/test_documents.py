"""Tests of samples made of documents with a mask of targets: a job of four processes, its counters, and errors for
invalid files."""

import math

import pytest

from harness.specs import corpus, one_rank, spec
from harness.training import EVERY, Record, kill_rank, saving, submit_from, wait_committed


TOKENS = 2048  # Each evaluation reads all of them.


@pytest.fixture
def data(tmp_path):
    """The data section of the spec: text whose sentences are documents, with only letters as targets."""
    text = corpus(tmp_path / "text.u8", TOKENS)
    (tmp_path / "mask.u8").write_bytes(bytes(97 <= each <= 122 for each in text.read_bytes()))
    file = {"path": str(text), "mask": str(tmp_path / "mask.u8"), "type": "u8"}
    return {"synthetic": None, "tokens": [file], "validation": [file], "document_end_token": ord(".")}


def trained(cluster, made):
    job_id = cluster.submit(made)
    return cluster.wait_state(job_id, "SUCCEEDED").last_step


def test_job_with_documents_and_mask_succeeds(cluster, data):
    train = {"micro_batch": 1, "global_batch": 4, "evaluation": {"every_steps": 4}}
    one = trained(cluster, one_rank(steps=8, data=data, train=train))
    # Four fifths of the targets are letters.
    assert 0.7 * TOKENS < one.evaluation.tokens < 0.85 * TOKENS
    for more in ({}, {"parallel": {"tensor": 2}}, {"fsdp": {"recompute": "full"}}):
        other = trained(cluster, spec(steps=8, data=data, train=train, **more))
        assert other.loss == pytest.approx(one.loss, rel=1e-5), more
        assert other.evaluation.tokens == one.evaluation.tokens
        assert other.evaluation.loss == pytest.approx(one.evaluation.loss, rel=1e-5), more
    apart = trained(cluster, one_rank(steps=8, data={**data, "document_end_token": None}, train=train))
    assert abs(apart.loss - one.loss) > 1e-3 * one.loss


def test_job_without_targets_reports_it(cluster, data, tmp_path):
    (tmp_path / "mask.u8").write_bytes(bytes(TOKENS))
    job_id = cluster.submit(one_rank(steps=3, data={**data, "document_end_token": 7},
                                     train={"evaluation": {"every_steps": 3}}))
    job = cluster.wait_state(job_id, "SUCCEEDED")
    output = ["step 1 has no targets", "3 of the 3 steps", "the evaluation after step 3 has no targets",
            "tokens read is 7 (data.document_end_token)"]
    assert len(job.warnings) == len(output)
    for warning, words in zip(job.warnings, output):
        assert words in warning
        assert any(event.message == f"warning: {warning}" for event in job.events)
        assert warning in cluster.ctl("describe", job_id).out
        assert warning in cluster.ctl("logs", job_id).out


@pytest.mark.parametrize("content, output", [
    (b"\1" * 100, "wrong mask size (got 100 bytes, want one for each token of"),
    (b"1" * TOKENS, "invalid mask value (got 49"),
], ids=["short", "text"])
def test_invalid_mask_fails_job_with_its_file(cluster, data, tmp_path, content, output):
    (tmp_path / "mask.u8").write_bytes(content)
    job = cluster.wait_state(cluster.submit(spec(data=data)), "FAILED")
    assert "mask.u8" in job.reason and output in job.reason, job.reason


def in_epochs(directory, epochs, **sections):
    """A job of whole sentences, with checkpoints."""
    made = saving(directory, data={"document_end_token": ord("."), "packing": "documents", "sequence_length": 64}, **sections)
    del made["train"]["steps"]
    made["train"]["epochs"] = epochs
    return made


def test_epochs_of_whole_documents_survive_kills(own, tmp_path):
    with own() as cluster:
        undisturbed = cluster.submit(in_epochs(tmp_path / "whole", 1.5))
        whole = Record(cluster, undisturbed)
        job = cluster.wait_state(undisturbed, "SUCCEEDED")
        # 182 sentences of 44 or 45 tokens, and the beginning of one. A sample holds one sentence.
        assert job.epoch_samples == 182
        assert job.spec.train.epochs == 1.5 and not job.spec.train.HasField("steps")
        steps = job.resolved.train.steps
        assert steps == math.ceil(1.5 * 182 / 4) == job.last_step.step
        assert 4 * 43 <= job.last_step.loss_tokens <= 4 * 44 + 2 and job.last_step.tokens == 4 * 64
        assert f"epochs:    {steps * 4 / 182:.2f}/1.5" in cluster.ctl("describe", undisturbed).out
        assert "packed 183 documents into 182 samples" in cluster.ctl("logs", undisturbed).out
        job_id = cluster.submit(in_epochs(tmp_path / "killed", 1.5))
        record = Record(cluster, job_id)
        wait_committed(cluster, job_id, 2 * EVERY)
        kill_rank(cluster, 1)
        assert cluster.wait_state(job_id, "SUCCEEDED").attempt == 2
        losses = dict(whole.losses())
        assert len(losses) == steps
        assert all(losses[step] == loss for step, loss in record.losses())


def test_documents_that_are_too_long_are_reported(cluster, tmp_path):
    handled = {"truncate": "truncated", "split": "split", "drop": "dropped"}
    text = tmp_path / "text.u8"
    text.write_bytes(b"a short one." * 30 + b"a document that is longer than a sample is." * 3)
    file = {"path": str(text), "type": "u8"}
    for too_long, word in handled.items():
        data = {"synthetic": None, "tokens": [file], "document_end_token": ord("."), "packing": "documents",
                "too_long": too_long, "sequence_length": 32}
        job = cluster.wait_state(cluster.submit(one_rank(steps=2, data=data)), "SUCCEEDED")
        assert list(job.warnings) == ["data.tokens: 3 of 33 documents are longer than 33 tokens (sequence_length + 1) "
                                      f"and are {word} (data.too_long), all in {text}"]
    only_long = {**data, "tokens": [{**file, "path": str(tmp_path / "long.u8")}]}
    (tmp_path / "long.u8").write_bytes(b"a document that is longer than a sample is." * 3)
    job = cluster.wait_state(cluster.submit(one_rank(steps=2, data=only_long)), "FAILED")
    assert "no document to train on (got 3 documents, 3 of them longer than a sample of 33 tokens" in job.reason, job.reason


def test_steps_of_epochs_break_a_rule(cluster, tmp_path):
    """The number of steps is known only when ranks have opened the data; rules are checked then."""
    made = in_epochs(tmp_path, 1, schedule={"cosine": {"warmup_steps": 1000}})
    job = cluster.wait_state(cluster.submit(made), "FAILED")
    assert "warm-up takes 1000 steps and the job ends after 46" in job.reason, job.reason


def test_epochs_continue_another_job(own, tmp_path):
    """Regression: the coordinator knew no steps when rank 0 reported the checkpoint, and refused all later ones."""
    with own() as cluster:
        first = cluster.submit(in_epochs(tmp_path / "first", 0.5, name="first"))
        cluster.wait_state(first, "SUCCEEDED")
        job_id = submit_from(cluster, first, in_epochs(tmp_path / "second", 1, name="second"))
        job = cluster.wait_state(job_id, "SUCCEEDED")
        assert job.restored.step == 23 and job.last_step.step == 46
        assert job.checkpoints[-1].step == 46 and job.resolved.train.steps == 46
