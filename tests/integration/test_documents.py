"""Tests of samples made of documents with a mask of targets: a job of four processes, its counters, and errors for
invalid files."""

import pytest

from harness.specs import corpus, one_rank, spec


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
