"""Renders each dashboard of a real job with Grafana's panel library (13.2.2) in headless Chromium, from the data of a
real Prometheus. FSDPD_PICTURES names an output directory for the pictures: docs/img has those of dashboards/README.md.
"""

import os
import pathlib
import time

import pytest

from harness import dashboards, grafana
from harness.browser import PROGRAM
from harness.prometheus import Prometheus
from harness.specs import ENDLESS, corpus, spec
from harness.wait import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
SCRAPES = int(os.environ.get("FSDPD_PICTURES_S", 60))  # One each second.
BOARDS = {name.removesuffix(".json"): board for name, board in dashboards.boards().items()}


@pytest.fixture(scope="module")
def watched(shared, tmp_path_factory):
    """(Prometheus, job id, start and end in seconds), once there are curves."""
    directory = tmp_path_factory.mktemp("watched")
    text = corpus(directory / "text.bin", tokens=20000)
    files = [{"path": str(text), "type": "u8"}]
    job_id = shared.submit(spec(
        steps=ENDLESS, name="watched", model={"llama": None, "preset": "tiny"}, optimizer={"adamw": {"lr": 3e-3}, "clip_norm": 1.0},
        data={"synthetic": None, "tokens": files, "validation": files, "sequence_length": 64},
        train={"micro_batch": 2, "global_batch": 8, "evaluation": {"every_steps": 25, "samples": 16}},
        checkpoint={"dir": str(directory / "run"), "every_steps": 100}))
    begin = time.time()
    with Prometheus(tmp_path_factory.mktemp("prometheus"), list(shared.metrics.values()), shared.mark,
                    [shared.coordinator_metrics]) as server:
        shared.wait_step(job_id, 110)
        wait_until("there are curves", lambda: time.time() > begin + SCRAPES, timeout_s=SCRAPES + 60)
        yield server, job_id, begin, time.time()
    shared.cancel(job_id)


@pytest.fixture(scope="module")
def drawing(tmp_path_factory):
    directory = tmp_path_factory.mktemp("drawing")
    grafana.drawer(directory)
    return directory


@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
@pytest.mark.parametrize("name", BOARDS)
def test_grafana_draws_dashboard_of_real_job(watched, drawing, tmp_path, name):
    server, job_id, begin, end = watched
    variables = {"job": job_id, "rank": ".*", "__rate_interval": "10s"}
    kept = pathlib.Path(os.environ.get("FSDPD_PICTURES", tmp_path)).resolve() / f"{name}.png"
    shown = grafana.draw(BOARDS[name], server, variables, begin, end, drawing, tmp_path / "profile", kept)
    panels = [panel for panel in dashboards.panels(BOARDS[name]) if panel["type"] != "row"]
    assert len(shown) > len(panels) / 2, "a job on CPUs has no cards"
