"""Tests of `fsdpctl export`: its output is read by TensorBoard, and by W&B's client in offline mode."""

import pytest

from harness import pages, readers
from harness.specs import one_rank
from harness.stubs import steps as api

STEPS = 60

pytestmark = pytest.mark.nightly  # 113 MB of packages, once.


@pytest.fixture(scope="module")
def exported(shared, tmp_path_factory):
    """(job id, its steps, the directory of both files)"""
    job_id = shared.submit(one_rank(steps=STEPS))
    shared.wait_state(job_id, "SUCCEEDED")
    directory = tmp_path_factory.mktemp("runs")
    for tool in ("tensorboard", "wandb"):
        shared.ctl("export", job_id, "--as", tool, "--out", directory).expect(0)
    made = shared.api().ListSteps(api.ListStepsRequest(id=job_id, page_size=STEPS), timeout=30).steps
    assert len(made) == STEPS
    return job_id, made, directory


def test_tensorboard_has_each_step(exported):
    _, made, directory = exported
    curves = readers.tensorboard(directory)
    for tag, value in (("train/loss", lambda step: step.loss), ("memory/peak_bytes", lambda step: step.peak_bytes),
                       ("time/tokens_per_second", lambda step: step.tokens / step.step_seconds)):
        assert [number for number, _ in curves[tag]] == [step.step for step in made]
        assert [shown for _, shown in curves[tag]] == pytest.approx([value(step) for step in made], rel=1e-6)


def test_documented_lines_create_wandb_run(exported):
    job_id, made, directory = exported
    block, = [each.text for each in pages.blocks("docs/steps.md") if "wandb-history.jsonl" in each.text and each.language == "python"]
    rows = readers.wandb_run(directory, block.replace("DIR/JOB", f"{directory}/{job_id}"))
    assert [row["_step"] for row in rows] == [step.step for step in made]
    assert [row["train/loss"] for row in rows] == [step.loss for step in made]
    assert [row["time/step_seconds"] for row in rows] == pytest.approx([step.step_seconds for step in made])
