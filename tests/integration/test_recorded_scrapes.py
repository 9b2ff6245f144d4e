"""Tests of a Prometheus filled from recorded scrapes (harness/scrapes.py): it has their values and those of recording
rules."""

import subprocess
import sys

import pytest

from harness import scrapes
from harness.browser import PROGRAM
from harness.programs import ROOT
from harness.specs import ENDLESS, spec


@pytest.fixture(scope="module")
def recorded(shared, tmp_path_factory):
    """(directory, job id) of a few seconds of a real job."""
    directory = tmp_path_factory.mktemp("scrapes")
    job_id = shared.submit(spec(steps=ENDLESS, name="recorded"))
    shared.wait_step(job_id, 3)
    targets = {f"agent-{node}": address for node, address in shared.metrics.items()}
    scrapes.record(directory, {**targets, "coordinator": shared.coordinator_metrics}, seconds=12)
    shared.cancel(job_id)
    return directory, job_id


def test_serves_recorded_values(recorded, shared, tmp_path):
    directory, job_id = recorded
    kept = scrapes.read(directory)
    assert {(each.job, each.instance) for each in kept} == {
        ("fsdpd-agent", "node-0:7778"), ("fsdpd-agent", "node-1:7778"), ("fsdpd-coordinator", "coordinator:7780")}
    with scrapes.Recorded(tmp_path / "prometheus", kept, shared.mark) as held:
        assert held.job() == job_id and held.every_s == 1 and 12 <= held.end - held.begin < 30
        requested = 0
        for path in directory.glob("agent-*.txt"):
            name, millis = path.stem.removeprefix("agent-").rsplit("-", 1)
            for line in path.read_text().splitlines():
                if line.startswith("fsdpd_steps_total{"):
                    rank, value = line.split('rank="')[1].split('"')[0], float(line.split()[-1])
                    found, = held.server.query(f'fsdpd_steps_total{{fsdpd_job="{job_id}", rank="{rank}"}}', int(millis) / 1000)
                    assert found[1] == value
                    assert found[0]["instance"] == f"{name}:7778" and found[0]["job"] == "fsdpd-agent"
                    requested += 1
        assert requested == 4 * len(kept) / 3
        # As Prometheus would have it of the counters at that moment, and only up to the end.
        record, = held.server.query(f'fsdpd_job:fsdpd_tokens:rate1m{{fsdpd_job="{job_id}"}}', held.end)
        rate, = held.server.query(f'sum by (fsdpd_job) (rate(fsdpd_tokens_total{{fsdpd_job="{job_id}"}}[1m]))', held.end)
        assert record[1] == pytest.approx(rate[1], rel=0.2) and record[1] > 0
        assert not held.server.query("fsdpd_steps_total or fsdpd_job:fsdpd_tokens:rate1m", held.end + 10)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
def test_one_command_draws_dashboards(recorded, tmp_path):
    directory, job_id = recorded
    done = subprocess.run([sys.executable, ROOT / "tests/perf/recorded_scrapes.py", directory, tmp_path / "pictures"],
                          capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == [
        "fsdpd-fleet.png", "fsdpd-job.png", "fsdpd-memory.png", "fsdpd-overlap.png"]
    assert done.stdout.count(job_id) == 4, done.stdout
