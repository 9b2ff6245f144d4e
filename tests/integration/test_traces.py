"""Tests of step traces: by spec, on demand, and when they cannot be written. A trace is JSON in Chrome's format, so the
tests read what Perfetto reads."""

import collections
import json
import os
import pathlib
import pickle
import re
import signal

import grpc
import pytest
from torch.cuda import _memory_viz

from harness.cluster import rank_of
from harness.small_disk import fill, small_disk
from harness.specs import ENDLESS, spec, to_message
from harness.stubs import coordinator, trace as trace_api
from harness.wait import wait_until

LANES = ["compute", "gather", "reduce", "outer", "copy"]


def two_ranks(steps=ENDLESS, **sections):
    return spec(steps=steps, resources={"nodes": 2, "ranks_per_node": 1}, train={"global_batch": 8}, **sections)


def program(cluster, made):
    """Returns the instructions in a trace by number: all that take time."""
    plan = cluster.api().PlanJob(coordinator.PlanJobRequest(spec=to_message(made)), timeout=60).plan
    return {number: each for number, each in enumerate(plan.instructions) if each.op != "Release"}


def directory_of(cluster, rank, job_id):
    """Returns the directory of the attempt on the node of the rank."""
    [log] = cluster.directory.glob(f"*.work/{job_id}/attempt-1/rank-{rank}.log")
    return log.parent


def nanos(micros):
    return round(micros * 1000)


def check_trace(trace, instructions, steps, ranks):
    """Checks that each instruction is there once per step and rank, lanes are in order, and arrows lead from the end of
    an instruction to a start."""
    events = trace["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert min(event["ts"] for event in slices) == 0
    ran = collections.defaultdict(dict)
    whole = {}
    for event in slices:
        end = nanos(event["ts"]) + nanos(event["dur"])
        if event["cat"] == "step":
            whole[event["pid"], int(event["name"].split()[1])] = nanos(event["ts"]), end
            continue
        instruction = instructions[event["args"]["instruction"]]
        assert event["cat"] == instruction.op and LANES[event["tid"]] == instruction.lane
        assert event["args"].get("unit", "") == instruction.unit
        assert event["args"].get("micro_batch", -1) == instruction.micro_batch
        of_step = ran[event["pid"], event["args"]["step"]]
        assert event["args"]["instruction"] not in of_step, event
        of_step[event["args"]["instruction"]] = nanos(event["ts"]), end
    wanted = {(rank, step) for rank in range(ranks) for step in steps}
    assert set(whole) == wanted and set(ran) == wanted
    for which, times in ran.items():
        assert set(times) == set(instructions), which
        for number, (begin, end) in times.items():
            assert end <= whole[which][1] + 1, (which, number)
            assert begin >= whole[which][0] or instructions[number].lane in ("gather", "outer"), (which, number)
    for rank in range(ranks):
        for lane in range(len(LANES)):
            spans = sorted((nanos(event["ts"]), nanos(event["ts"]) + nanos(event["dur"])) for event in slices
                           if event["pid"] == rank and event["tid"] == lane)
            assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:])), (rank, LANES[lane])
    check_arrows(events, slices)
    counters = {(event["pid"], event["name"]) for event in events if event["ph"] == "C"}
    assert counters == {(rank, name) for rank in range(ranks) for name in ("allocated", "reserved", "arena in use")}
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} == {*LANES, "step"}


def check_arrows(events, slices):
    at = {(event["pid"], event["tid"], event["ts"]): event for event in slices}
    arrows = collections.defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            assert event["ph"] not in arrows[event["id"]], "an id is one arrow's"
            arrows[event["id"]][event["ph"]] = at[event["pid"], event["tid"], event["ts"]]
    assert arrows
    for ends in arrows.values():
        assert ends["s"]["ts"] + ends["s"]["dur"] <= ends["f"]["ts"] + 0.001, ends
    kinds = {(ends["s"]["cat"], ends["f"]["cat"]) for ends in arrows.values()}
    assert ("Gather", "Forward") in kinds and any(begin.startswith("Backward") and end == "Reduce"
                                                  for begin, end in kinds), kinds


def test_all_ranks_trace_steps_of_spec(cluster):
    made = two_ranks(steps=8, telemetry={"trace_steps": [2, 3, 7]})
    job_id = cluster.submit(made)
    cluster.wait_state(job_id, "SUCCEEDED")
    instructions = program(cluster, made)
    for rank in (0, 1):
        names = {path.name for path in directory_of(cluster, rank, job_id).iterdir()}
        assert names == {f"rank-{rank}.log", *(f"trace_step_{step}_rank_{rank}.json" for step in (2, 3, 7))}
        log = (directory_of(cluster, rank, job_id) / f"rank-{rank}.log").read_text()
        assert log.count("trace    7/8  ") == 1, log
    out = cluster.directory / "joined.json"
    reported = cluster.ctl("trace", job_id, "--written", "--out", out).expect(0).out
    assert reported.startswith(f"{out}  3 steps (2 to 7) of 2 ranks, "), reported
    check_trace(json.loads(out.read_text()), instructions, steps=(2, 3, 7), ranks=2)


def test_trace_of_running_job(cluster, tmp_path):
    made = two_ranks()
    job_id = cluster.submit(made)
    cluster.wait_step(job_id, 20)
    done = cluster.ctl("trace", job_id, "--steps", 2, "-o", "json", cwd=tmp_path).expect(0)
    traces = [json.loads(line) for line in done.out.splitlines()]
    steps = sorted({int(trace["trace"]["step"]) for trace in traces})
    assert len(traces) == 4 and steps[1] == steps[0] + 1, traces
    assert f"tracing steps {steps[0]} to {steps[1]} on 2 ranks" in done.err
    for trace in traces:
        path = directory_of(cluster, trace["rank"], job_id) / f"trace_step_{trace['trace']['step']}_rank_{trace['rank']}.json"
        assert trace["trace"]["path"] == str(path) and path.is_relative_to(cluster.directory / f"{trace['node']}.work")
        assert json.loads(path.read_text())["traceEvents"], "each rank's own file is whole too"
    check_trace(json.loads((tmp_path / f"{job_id}.trace.json").read_text()), program(cluster, made), steps, ranks=2)
    # Steps go on, and more can be traced.
    cluster.wait_step(job_id, steps[1] + 10)
    assert cluster.state(job_id) == "RUNNING"
    cluster.ctl("trace", job_id, "--rank", 1, "--out", tmp_path / "one.json").expect(0)
    assert {event["pid"] for event in json.loads((tmp_path / "one.json").read_text())["traceEvents"]} == {1}


def check_memory(path):
    """Parses a memory snapshot with PyTorch's parser; returns its bytes and the names of the allocating instructions.
    """
    snapshot = pickle.loads(path.read_bytes())
    held = sum(block["size"] for segment in snapshot["segments"] for block in segment["blocks"]
               if block["state"] == "active_allocated")
    assert held == sum(segment["allocated_size"] for segment in snapshot["segments"]) > 0
    assert f"segments: {len(snapshot['segments'])}\n" in _memory_viz.segsum(snapshot)
    assert f"\n{len(snapshot['device_traces'][0])} entries\n" in _memory_viz.trace(snapshot)
    # Pages with the snapshot in them, for a browser.
    assert len(_memory_viz.trace_plot(snapshot)) > 1000 and len(_memory_viz.segment_plot(snapshot)) > 1000
    names = {frame["name"] for event in snapshot["device_traces"][0] for frame in event["frames"]}
    assert {"Forward layer.0 mb 0", "Backward layer.0 mb 0"} <= names, names
    return held


def test_memory_snapshot_matches_pytorch_viewer(cluster):
    job_id = cluster.submit(two_ranks(steps=6, telemetry={"memory_snapshot": True}))
    cluster.wait_state(job_id, "SUCCEEDED")
    for rank in (0, 1):
        directory = directory_of(cluster, rank, job_id)
        assert {path.name for path in directory.iterdir()} == {f"rank-{rank}.log", f"memory_step_2_rank_{rank}.pickle"}
        check_memory(directory / f"memory_step_2_rank_{rank}.pickle")
        assert (directory / f"rank-{rank}.log").read_text().count("memory    2/6  ") == 1


def test_memory_snapshot_of_running_job(cluster, tmp_path):
    job_id = cluster.submit(two_ranks())
    cluster.wait_step(job_id, 20)
    output = cluster.ctl("trace", job_id, "--memory", "--out", tmp_path / "trace.json").expect(0).out
    places = re.findall(r"^  step (\d+) of rank (\d): (node-\d):(\S+), ", output, re.M)
    assert [rank for _, rank, _, _ in places] == ["0", "1"] or [rank for _, rank, _, _ in places] == ["1", "0"], output
    for step, rank, node, path in places:
        assert pathlib.Path(path) == directory_of(cluster, int(rank), job_id) / f"memory_step_{step}_rank_{rank}.pickle"
        assert pathlib.Path(path).is_relative_to(cluster.directory / f"{node}.work")
        check_memory(pathlib.Path(path))
    cluster.wait_step(job_id, int(places[0][0]) + 10)
    assert cluster.state(job_id) == "RUNNING"


def test_rejects_untraceable_job_with_reason(cluster, tmp_path):
    assert "no job" in cluster.ctl("trace", "nobody-abcdef").expect(4).err
    assert "from 1 to 16" in cluster.ctl("trace", "nobody-abcdef", "--steps", 17).expect(2).err
    assert "--steps" in cluster.ctl("trace", "nobody-abcdef", "--steps", 2, "--written").expect(2).err
    waiting = cluster.submit(spec(resources={"nodes": 3, "ranks_per_node": 1}, train={"global_batch": 3}))
    assert "was not launched" in cluster.ctl("trace", waiting).expect(7).err
    short = cluster.submit(two_ranks(steps=3))
    cluster.wait_state(short, "SUCCEEDED")
    assert "is not training" in cluster.ctl("trace", short).expect(7).err
    assert "no trace of attempt 1 of job" in cluster.ctl("trace", short, "--written").expect(4).err
    assert "[ATTEMPT_NOT_FOUND]" in cluster.ctl("trace", short, "--written", "--attempt", 2).expect(4).err
    assert "ranks 0..1" in cluster.ctl("trace", short, "--written", "--rank", 2).expect(2).err
    running = cluster.submit(two_ranks())
    cluster.wait_step(running, 5)
    with pytest.raises(grpc.RpcError, match="memory_snapshot: requires steps"):
        list(cluster.api().TraceJob(trace_api.TraceJobRequest(id=running, memory_snapshot=True), timeout=60))
    refused = cluster.ctl("trace", running, "--out", tmp_path / "gone" / "x.json").expect(2).err
    assert "no such directory" in refused
    assert "tracing" not in refused
    full = cluster.ctl("trace", running, "--out", "/dev/full").expect(2).err
    assert "No space left on device; fetch the traces with" in full
    cluster.ctl("trace", running, "--written", "--out", tmp_path / "x.json").expect(0)


def test_full_disk_loses_trace_but_not_job(own, tmp_path):
    with small_disk(tmp_path / "disk") as disk, own(agents=1, slots=1) as cluster:
        cluster.start_agent("node-1", slots=1, work_dir=disk / "work")
        job_id = cluster.submit(two_ranks())
        cluster.wait_step(job_id, 5)
        filler = fill(disk)
        out = tmp_path / "half.json"
        done = cluster.ctl("trace", job_id, "--out", out).expect(7)
        assert "No space left on device" in done.err and done.err.count("was not traced") == 1, done
        assert "of 1 rank, " in done.out
        events = json.loads(out.read_text())["traceEvents"]
        assert len({event["pid"] for event in events}) == 1, "what could be written is there"
        assert not list(disk.rglob("trace_*")), "nothing is left of the other"
        filler.unlink()
        cluster.ctl("trace", job_id, "--out", out).expect(0)
        assert cluster.state(job_id) == "RUNNING"
        cluster.cancel(job_id)


def test_hung_disk_blocks_no_step(cluster, tmp_path):
    job_id = cluster.submit(two_ranks(telemetry={"trace_steps": [50]}))
    ranks = wait_until("ranks are launched", lambda: len(cluster.all_ranks()) == 2 and cluster.all_ranks())
    for rank in ranks:
        os.kill(rank.pid, signal.SIGSTOP)
    directories = {rank: directory_of(cluster, rank, job_id) for rank in (0, 1)}
    # Who opens it to write waits for a reader.
    os.mkfifo(directories[0] / "trace_step_50_rank_0.json.tmp")
    for rank in ranks:
        os.kill(rank.pid, signal.SIGCONT)
    cluster.wait_step(job_id, 100)
    other = directories[1] / "trace_step_50_rank_1.json"
    wait_until("the other rank has written its own", other.exists)
    os.kill(next(rank.pid for rank in ranks if rank_of(rank) == 0), signal.SIGKILL)
    cluster.wait_state(job_id, "FAILED")
    assert not (directories[0] / "trace_step_50_rank_0.json").exists()
    out = tmp_path / "one.json"
    assert "1 step (50) of 1 rank, " in cluster.ctl("trace", job_id, "--written", "--out", out).expect(0).out
    assert {event["pid"] for event in json.loads(out.read_text())["traceEvents"]} == {1}


def test_trace_reports_early_end_of_attempt(cluster):
    job_id = cluster.submit(two_ranks())
    cluster.wait_step(job_id, 5)
    os.kill(cluster.all_ranks()[0].pid, signal.SIGSTOP)  # The traced steps run after SIGCONT.
    stream = cluster.api().TraceJob(trace_api.TraceJobRequest(id=job_id, steps=1), timeout=120)
    assert next(stream).order.ranks == 2
    cluster.cancel(job_id)
    with pytest.raises(grpc.RpcError) as raised:
        list(stream)
    assert "ended before 2 of its traces were written" in raised.value.details()
