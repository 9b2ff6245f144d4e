"""Fixtures with one cluster for all tests of this directory: two nodes with kubelets, which have the images of
deploy/container. Each file installs fsdpd in another way, and uninstalls it. Durations of recoveries are printed (pytest -s).

Limits: the network enforces no NetworkPolicy, shared volumes are a directory of this machine, and the next release is the
same programs with another tag.
"""

import shutil

import pytest

from harness.apiserver import programs
from harness.images import Images, collected
from harness.installation import RELEASE, Clock
from harness.kubelets import Kubelets, missing
from harness.processes import marked
from harness.programs import program

IMAGES = {"coordinator": "fsdpd-coordinator", "agent": "fsdpd-agent", "fsdpctl": "fsdpctl"}


def save_images(directory):
    """Saves all images as files in `directory`."""
    directory.mkdir()
    made = Images(directory.parent, "kubelets")
    try:
        collected(directory.parent / "out")
        made.build(directory.parent / "out", *IMAGES)
        for image, name in IMAGES.items():
            made.saved(image, f"docker.io/library/{name}:{RELEASE}", directory / f"{name}.tar")
        made.of_program(programs("nodes") / "pause", "pause")
        made.saved("pause", "localhost/pause:1", directory / "pause.tar")
    finally:
        made.remove()
        shutil.rmtree(directory.parent / "out", ignore_errors=True)


@pytest.fixture(scope="package")
def kubelets(tmp_path_factory, request):
    if missing():
        pytest.skip(f"needs {', '.join(missing())}; `tests/run kubelets` builds what is to be built")
    for each in ("coordinator/fsdpd-coordinator", "agent/fsdpd-agent", "fsdp/fsdpd-rank", "client/fsdpctl"):
        program(each)
    directory = tmp_path_factory.mktemp("kubelets")
    clock = Clock("start")
    save_images(directory / "images")
    clock("images are built")
    clock, mark = Clock("start"), f"kubelets-{directory}"
    cluster = Kubelets(directory, mark)
    try:
        clock("two nodes are ready")
        yield cluster
    finally:
        if request.session.testsfailed:
            print(cluster.logs())
        cluster.stop()
        shutil.rmtree(directory / "images")
        assert not marked(mark)
