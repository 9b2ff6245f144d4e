"""Tests of path roots: paths of a spec must be below the directories of the agent, or no rank starts."""

import pytest

from harness.cluster import Cluster
from harness.specs import corpus, spec
from harness.stubs import event


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    return tmp_path_factory.mktemp("volume")


@pytest.fixture(scope="module")
def shared(tmp_path_factory, volume):
    with Cluster(tmp_path_factory.mktemp("paths"), agents=0) as made:
        for node in ("node-0", "node-1"):
            made.start_agent(node, path_root=volume)
        yield made


def tokens(path, **file):
    return [{"path": str(path), "type": "u8", **file}]


def reads(path, **more):
    return {"data": {"synthetic": None, "tokens": tokens(path), **more}}


def test_job_reads_and_writes_below_path_root(cluster, volume):
    text = corpus(volume / "corpus.txt")
    (volume / "link.txt").symlink_to(text)
    saved = volume / "runs/one"
    made = spec(checkpoint={"dir": str(saved)}, **reads(volume / "link.txt", validation=tokens(text)),
                train={"steps": 3, "evaluation": {"every_steps": 3, "samples": 4}})
    cluster.wait_state(cluster.submit(made), "SUCCEEDED")
    assert list(saved.glob("iter_*"))
    loaded = spec(checkpoint={"load": str(saved)}, train={"steps": 4}, **reads(text))
    cluster.wait_state(cluster.submit(loaded), "SUCCEEDED")


def outside(volume, directory):
    """Specs with one path outside the roots each, by field."""
    theirs, own = corpus(directory / "theirs.txt"), corpus(volume / "corpus.txt")
    (volume / "out.txt").unlink(missing_ok=True)
    (volume / "out.txt").symlink_to(theirs)
    return {
        "data.tokens[0].path": (theirs, reads(theirs)),
        "data.tokens[0].mask": (theirs, reads(own, tokens=tokens(own, mask=str(theirs)))),
        "data.validation[0].path": (theirs, {**reads(own, validation=tokens(theirs)),
                                             "train": {"steps": 3, "evaluation": {"every_steps": 3}}}),
        "a link": (volume / "out.txt", reads(volume / "out.txt")),
        "checkpoint.dir": (directory / "saved", {"checkpoint": {"dir": str(directory / "saved")}}),
        "checkpoint.load": (directory / "model", {"checkpoint": {"load": str(directory / "model")}}),
    }


@pytest.mark.parametrize("field", ["data.tokens[0].path", "data.tokens[0].mask", "data.validation[0].path", "a link",
                                   "checkpoint.dir", "checkpoint.load"])
def test_path_outside_root_fails_job_before_start(cluster, volume, tmp_path, field):
    path, sections = outside(volume, tmp_path)[field]
    leads = f"leads to {path.resolve()}, which " if path.is_symlink() else ""
    job_id = cluster.submit(spec(restart={"max_attempts": 5}, **sections))
    job = cluster.wait_state(job_id, "FAILED")
    named = field if "." in field else "data.tokens[0].path"
    refused = f"{named}: '{path}' is not opened on this node: it {leads}is outside of --path-root {volume}"
    assert refused in job.reason, job.reason
    assert (job.attempt, job.failure.cause) == (1, event.FAILURE_CAUSE_CONFIGURATION), job
    assert not list(cluster.directory.glob(f"node-*.work/{job_id}")), "a rank was started"


@pytest.mark.parametrize("field", ["data.tokens[0].path", "checkpoint.dir", "checkpoint.load"])
def test_rejects_parent_path(cluster, volume, field):
    own = corpus(volume / "corpus.txt")
    sections = {"data.tokens[0].path": reads("../corpus.txt"),
                "checkpoint.dir": {"checkpoint": {"dir": "../saved"}, **reads(own)},
                "checkpoint.load": {"checkpoint": {"load": f"{volume}/x/../model"}, **reads(own)}}[field]
    refused = cluster.ctl("submit", "-f", cluster.write_spec(spec(**sections))).expect(3)
    assert field in refused.err and "contains .." in refused.err, refused
