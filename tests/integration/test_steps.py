"""Tests of the step history: nodes retain every step exactly once, whichever process is killed."""

import csv
import io
import json
import re
import struct

import grpc
import pytest

from harness.small_disk import fill, small_disk
from harness.specs import ENDLESS, one_rank, spec
from harness.stubs import coordinator, steps as api
from harness.training import EVERY, kill_rank, saving, wait_committed
from harness.wait import wait_until

STEPS = 240


def listed(cluster, job_id, page_size=37, **fields):
    """Joins all pages."""
    whole = api.ListStepsResponse()
    request = api.ListStepsRequest(id=job_id, page_size=page_size, **fields)
    while True:
        page = cluster.api().ListSteps(request, timeout=30)
        whole.MergeFrom(page)
        if not page.next_step:
            return whole
        assert page.next_step > request.from_step
        request.from_step = page.next_step


def numbers(response):
    return [step.step for step in response.steps]


def node_of(cluster, job_id):
    return cluster.job(job_id).placements[0].node


def launched(cluster, job_id, attempt):
    wait_until(f"attempt {attempt} makes a step", lambda: cluster.job(job_id).attempt == attempt
               and any(each.attempt == attempt for each in listed(cluster, job_id).steps), timeout_s=60)


def test_step_history_is_complete_after_kills(own, tmp_path):
    with own(slots=1) as cluster:
        job_id = cluster.submit(saving(tmp_path / "job", steps=STEPS, restart={"max_attempts": 9},
                                       resources={"nodes": 1, "ranks_per_node": 1}))
        wait_committed(cluster, job_id, 2 * EVERY)
        first = node_of(cluster, job_id)
        cluster.agents[first].kill()
        launched(cluster, job_id, 2)
        # What the node that is away has is missing, and is said to be.
        away = listed(cluster, job_id)
        began = numbers(away)[0]
        assert began > 2 * EVERY, "the second attempt went on from a checkpoint"
        assert [(hole.first, hole.last) for hole in away.missing] == [(1, began - 1)]
        assert {node.node for node in away.unread} == {first}
        shown = cluster.ctl("get", job_id, "--steps", "--to", began, "-o", "json").expect(5)
        assert f"steps 1 to {began - 1} are missing" in shown.err and f"{first}: its agent is not connected" in shown.err
        assert int(json.loads(shown.out.splitlines()[0])["step"]) == began
        cluster.start_agent(first, slots=1)
        assert not listed(cluster, job_id).missing
        kill_rank(cluster, 0)
        launched(cluster, job_id, 3)
        cluster.coordinator.kill()
        cluster.start_coordinator(listen=cluster.address)
        job = cluster.wait_state(job_id, "SUCCEEDED")
        whole = listed(cluster, job_id)
        assert numbers(whole) == list(range(1, STEPS + 1)) and not whole.missing and not whole.unread
        check_attempts(cluster, job_id, whole, attempts=job.attempt)
        check_exports(cluster, job_id, whole, tmp_path)
        cluster.api().DeleteJob(coordinator.DeleteJobRequest(id=job_id), timeout=30)
        wait_until("its records go with its logs", lambda: not list(cluster.directory.glob(f"*.work/{job_id}/steps/*")))


def check_attempts(cluster, job_id, whole, attempts):
    """Checks that each attempt has all its steps, that repeated steps are equal, and that the newest counts."""
    assert attempts >= 3
    run = {step.step: step for step in whole.steps}
    made = {}
    for attempt in range(1, attempts + 1):
        of = listed(cluster, job_id, attempt=attempt)
        steps = numbers(of)
        assert steps == list(range(steps[0], steps[-1] + 1)) and {step.attempt for step in of.steps} == {attempt}
        for step in of.steps:
            # A text and a seed give the same steps to the bit, after a checkpoint too.
            assert step.loss == run[step.step].loss and step.learning_rate == run[step.step].learning_rate
            made[step.step] = step
    assert {number: step.attempt for number, step in made.items()} == {number: step.attempt for number, step in run.items()}
    assert all(step.loss > 0 and step.step_seconds > 0 and step.tokens > 0 and step.peak_bytes > 0 for step in whole.steps)
    assert len({step.loss for step in whole.steps}) > STEPS // 2


def crc32c(data):
    """CRC-32C of RFC 3720, one bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def checked(data, stored):
    crc = crc32c(data)
    assert stored == (crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF
    return data


def fields_of(data):
    """Returns (number, value) of the fields of a protobuf message without its schema."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if not data[at - 1] & 0x80:
                return value
    while at < len(data):
        tag = varint()
        kind = tag & 7
        size = {0: 0, 1: 8, 5: 4}.get(kind)
        if kind == 0:
            yield tag >> 3, varint()
            continue
        size = varint() if size is None else size
        value = data[at:at + size]
        at += size
        yield tag >> 3, value if kind == 2 else struct.unpack("<d" if kind == 1 else "<f", value)[0]


def events_in(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        length, = struct.unpack("<Q", checked(data[at:at + 8], struct.unpack_from("<I", data, at + 8)[0]))
        yield dict(fields_of(checked(data[at + 12:at + 12 + length], struct.unpack_from("<I", data, at + 12 + length)[0])))
        at += 16 + length
    assert at == len(data)


def scalars(event):
    values = [dict(fields_of(value)) for number, value in fields_of(event[5]) if number == 1]
    return {value[1].decode(): value[2] for value in values}


def check_exports(cluster, job_id, whole, tmp_path):
    out = tmp_path / "runs"
    for _ in range(2):  # Exported again it takes the place of what was there.
        reported = cluster.ctl("export", job_id, "--as", "tensorboard", "--out", out).expect(0).out
        assert f"{STEPS} steps" in reported
    file, = out.iterdir()
    assert file.name.startswith("events.out.tfevents.")
    begin, *events = events_in(file)
    assert begin[3] == b"brain.Event:2" and [event[2] for event in events] == numbers(whole)
    for event, step in zip(events, whole.steps):
        shown = scalars(event)
        assert shown["train/loss"] == pytest.approx(step.loss, rel=1e-6) and event[1] == pytest.approx(step.unix_nanos / 1e9)
        assert shown["time/tokens_per_second"] == pytest.approx(step.tokens / step.step_seconds, rel=1e-6)
    cluster.ctl("export", job_id, "--as", "wandb", "--out", out, "--every", 10).expect(0)
    history = [json.loads(line) for line in (out / f"{job_id}.wandb-history.jsonl").read_text().splitlines()]
    assert [row["_step"] for row in history] == list(range(10, STEPS + 1, 10))
    assert history[-1]["train/loss"] == whole.steps[-1].loss and history[-1]["_runtime"] > history[0]["_runtime"] > 0
    rows = list(csv.DictReader(io.StringIO(cluster.ctl("get", job_id, "--steps", "-o", "csv").expect(0).out)))
    assert [float(row["loss"]) for row in rows] == [step.loss for step in whole.steps]
    table = cluster.ctl("get", job_id, "--steps", "--from", 3, "--to", 5).expect(0).out.splitlines()
    assert [row.split()[0] for row in table] == ["STEP", "3", "4", "5"]


def test_full_disk_steps_are_listed_as_missing(own, tmp_path):
    with small_disk(tmp_path / "disk") as disk, own(agents=0) as cluster:
        cluster.start_agent("node-0", slots=1, work_dir=disk / "work")

        def unrecorded():
            return int(re.search(r"^fsdpd_unrecorded_steps_total (\d+)$", cluster.scrape("node-0"), re.MULTILINE)[1])
        job_id = cluster.submit(one_rank(steps=ENDLESS))
        cluster.wait_step(job_id, 3)
        wait_until("steps are recorded", lambda: numbers(listed(cluster, job_id)))
        assert unrecorded() == 0
        filler = fill(disk)
        wait_until("steps are not recorded", lambda: unrecorded() > 5)
        last_before = numbers(listed(cluster, job_id))[-1]
        filler.unlink()
        wait_until("steps are recorded again", lambda: numbers(listed(cluster, job_id))[-1] > last_before)
        cluster.cancel(job_id)
        cluster.wait_state(job_id, "CANCELLED")
        whole = listed(cluster, job_id)
        assert sum(hole.last - hole.first + 1 for hole in whole.missing) == unrecorded()
        assert "steps are not recorded " in cluster.agents["node-0"].text()


def refused(cluster, code, says, **fields):
    with pytest.raises(grpc.RpcError) as raised:
        cluster.api().ListSteps(api.ListStepsRequest(**fields), timeout=30)
    assert raised.value.code() == code and says in raised.value.details(), raised.value


def test_rejects_unlistable_steps_with_reason(cluster, tmp_path):
    wrong = grpc.StatusCode.INVALID_ARGUMENT
    refused(cluster, grpc.StatusCode.NOT_FOUND, "nobody-abcdef", id="nobody-abcdef")
    job_id = cluster.submit(one_rank(steps=3))
    cluster.wait_state(job_id, "SUCCEEDED")
    refused(cluster, wrong, "to_step: must not be below from_step (got 2, want at least 3)", id=job_id, from_step=3, to_step=2)
    refused(cluster, grpc.StatusCode.NOT_FOUND, f"job {job_id} has attempts 1..1", id=job_id, attempt=2)
    for field in ("from_step", "to_step", "every", "page_size"):
        refused(cluster, wrong, f"{field}: must ", id=job_id, **{field: -1})
    refused(cluster, wrong, "page_size: must ", id=job_id, page_size=10001)
    waiting = cluster.submit(spec(steps=ENDLESS, resources={"nodes": 3, "ranks_per_node": 1}, train={"global_batch": 3}))
    refused(cluster, grpc.StatusCode.FAILED_PRECONDITION, "was not launched", id=waiting)
    assert numbers(listed(cluster, job_id, from_step=3)) == [3] and not numbers(listed(cluster, job_id, from_step=4))
    assert "must not be below from_step" in cluster.ctl("get", job_id, "--steps", "--from", 3, "--to", 2).expect(2).err
    assert "--steps requires exactly one job" in cluster.ctl("get", "--steps").expect(2).err
    assert "-o csv is supported only by get --steps" in cluster.ctl("get", "-o", "csv").expect(2).err
    assert "--steps" in cluster.ctl("get", job_id, "--from", 3).expect(2).err
    (tmp_path / "file").write_text("")
    for directory, says in ((tmp_path / "file", "directory"), (tmp_path / "no" / "where", "No such file"), ("/proc/1", "No such file")):
        output = cluster.ctl("export", job_id, "--as", "tensorboard", "--out", directory).expect(2).err
        assert f"--out {directory}" in output and says in output
