"""Tests of projects: selection of jobs, and quotas of concurrent ranks."""

from harness.cluster import Cluster
from harness.security import Security
from harness.specs import ENDLESS, one_rank
from harness.wait import wait_until


def submit(cluster, person, name, *flags, steps=ENDLESS, code=0):
    path = cluster.write_spec(one_rank(steps=steps, name=name))
    return cluster.ctl("submit", "-f", path, *flags, person=person).expect(code)


def test_project_has_quota_and_own_job_list(tmp_path):
    security = Security(tmp_path / "security")
    security.admit("pia", "submitter", "--project", "vision")
    security.admit("nils", "operator", "--project", "nlp")
    quotas = tmp_path / "quotas"
    quotas.write_text("vision 1\n")
    security.more_flags = ["--quotas", quotas]
    with Cluster(tmp_path / "cluster", agents=1, slots=3, security=security) as cluster:
        first = submit(cluster, "pia", "first").out.strip()
        cluster.wait_step(first, 1)
        second = submit(cluster, "pia", "second", steps=2).out.strip()
        wait_until("it waits for its quota", lambda: "project vision may have 1 at a time; 1 is in use"
                   in cluster.job(second).reason)
        other = submit(cluster, "sam", "other").out.strip()
        cluster.wait_step(other, 1)  # Of no project: it passes.
        shown = cluster.ctl("get", person="pia").expect(0).out
        assert first in shown and "(quota) " in shown and other not in shown, shown
        assert other in cluster.ctl("get", "--all-projects", person="pia").expect(0).out
        assert first not in cluster.ctl("get", person="nils").expect(0).out
        assert other in cluster.ctl("get", person="ada").expect(0).out, "an admin sees all"
        assert second in cluster.ctl("get", "--project", "vision", person="sam").expect(0).out
        assert "project:   vision\n" in cluster.ctl("describe", first, person="sam").expect(0).out
        refused = submit(cluster, "pia", "foreign", "--project", "nlp", code=7).err
        assert "pia is in project vision" in refused and "[PROJECT_NOT_ALLOWED]" in refused
        third = submit(cluster, "nils", "third", "--project", "vision", steps=2).out.strip()
        assert cluster.job(third).project == "vision"
        quotas.write_text("vision one\n")
        wait_until("the fault is said", lambda: "rejected quotas; the previous ones stay in use" in cluster.coordinator.text())
        assert cluster.state(second) == "QUEUED"
        quotas.write_text("# more of them came\nvision 3\n")
        for each in (second, third):
            cluster.wait_state(each, "SUCCEEDED")
        cluster.cancel_all()
