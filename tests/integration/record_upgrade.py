"""Records the data of a release that test_upgrade.py upgrades: a backup of a coordinator with jobs, a checkpoint and a spec.

    FSDPD_BIN=OLD/.build/bin PYTHONPATH=tests .python/bin/python tests/integration/record_upgrade.py \
        tests/integration/release_0_1.tar.gz

OLD is a build of that release. Messages are compatible, so this tree's harness drives its programs.
"""

import pathlib
import shutil
import sys
import tarfile
import tempfile

from harness.cluster import Cluster
from harness.specs import ENDLESS, spec

STEPS = 4  # Of the job that has ended.


def sized(nodes, **sections):
    return spec(resources={"nodes": nodes, "ranks_per_node": 1}, restart={"max_attempts": 5}, **sections)


def record(directory, archive):
    out = directory / "release"
    out.mkdir()
    with Cluster(directory / "cluster", agents=2) as cluster:
        # Both renamed fields are in the spec of the checkpoint.
        ended = cluster.submit(sized(2, name="ended", steps=STEPS, data={"ignore_index": 7}, train={"initial": {"std": 0.03}},
                                     checkpoint={"dir": str(out / "run"), "every_steps": 2}))
        cluster.wait_state(ended, "SUCCEEDED")
        running = cluster.submit(sized(2, name="running", steps=ENDLESS))
        queued = cluster.submit(sized(3, name="queued", steps=2, train={"global_batch": 6}))
        cluster.wait_step(running, 2)
        cluster.wait_state(queued, "QUEUED")
        (out / "job.yaml").write_text(cluster.ctl("get", ended, "-o", "spec").expect(0).out)
        cluster.coordinator_says("backup", "--state-dir", cluster.state_dir, "--to", out / "state")
        cluster.cancel_all()
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(out, arcname=".")


if __name__ == "__main__":
    scratch = pathlib.Path(tempfile.mkdtemp())
    try:
        record(scratch, sys.argv[1])
    finally:
        shutil.rmtree(scratch)
