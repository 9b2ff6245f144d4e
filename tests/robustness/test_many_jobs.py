"""Many jobs submitted through the API: all are listed, queue positions are complete, and a killed coordinator loses none.
tests/perf/stored_jobs.py measures times."""

import concurrent.futures
import re

import pytest

from harness import stubs
from harness.cluster import Cluster
from harness.specs import ENDLESS, one_rank, to_message
from harness.wait import wait_until

PARALLEL_CALLS = 8
MIB = 1 << 20


def listed(cluster, page_size, **query):
    """{id: job} of all pages; fails if a job is on two pages."""
    jobs, token = {}, ""
    while True:
        page = cluster.api().ListJobs(stubs.coordinator.ListJobsRequest(page_size=page_size, page_token=token, **query),
                                      timeout=120, wait_for_ready=True)
        again = [job.id for job in page.jobs if job.id in jobs]
        assert not again, f"jobs on two pages: {again[:5]}"
        jobs.update({job.id: job for job in page.jobs})
        token = page.next_page_token
        if not token:
            return jobs


def resident_bytes(cluster):
    return float(re.search(r"^process_resident_memory_bytes (\S+)$", cluster.scrape_coordinator(), re.M)[1])


def all_have_positions(cluster, ids):
    jobs = listed(cluster, 500)
    return sorted(jobs[each].waiting.queue_position for each in ids) == list(range(1, len(ids) + 1))


@pytest.mark.parametrize("count", [500, pytest.param(50_000, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])])
def test_many_queued_jobs_are_listed_and_survive_restart(tmp_path, count):
    with Cluster(tmp_path / "cluster", agents=1, slots=1) as cluster:
        holder = cluster.submit(one_rank(steps=ENDLESS))  # Jobs have a position only if a connected node could take them.
        cluster.wait_state(holder, "RUNNING")
        before = resident_bytes(cluster)
        api, job = cluster.api(), to_message(one_rank(name="many"))

        def submit(number):
            label = stubs.job.Label(key="tenth", value=str(number % 10))
            request = stubs.coordinator.SubmitJobRequest(spec=job, request_id=f"r-{number}", labels=[label])
            return api.SubmitJob(request, timeout=120, wait_for_ready=True).job.id

        with concurrent.futures.ThreadPoolExecutor(PARALLEL_CALLS) as calls:
            ids = list(calls.map(submit, range(count)))
        assert len(set(ids)) == count
        assert set(listed(cluster, 500)) == {holder, *ids}
        assert set(listed(cluster, 97, selector="tenth=3")) == set(ids[3::10])
        wait_until("each job has its queue position", lambda: all_have_positions(cluster, ids), 600)
        # Twice the memory of a job, plus the pages of lists.
        assert resident_bytes(cluster) - before < count * 48 * 1024 + 200 * MIB

        address = cluster.address
        cluster.coordinator.kill()
        cluster.start_coordinator(listen=address)
        assert set(listed(cluster, 500)) == {holder, *ids}
        assert set(listed(cluster, 97, selector="tenth=3")) == set(ids[3::10])
        wait_until("each job has its queue position again", lambda: all_have_positions(cluster, ids), 600)
        assert submit_again(cluster, job) == ids[0], "a repeated request returns the existing job"


def submit_again(cluster, job):
    label = stubs.job.Label(key="tenth", value="0")
    return cluster.api().SubmitJob(stubs.coordinator.SubmitJobRequest(spec=job, request_id="r-0", labels=[label]),
                                   timeout=120, wait_for_ready=True).job.id
