#!/usr/bin/env python3
"""Example of a service that runs one job: it submits the job, follows it, and reports the result.

    FSDPD_SERVER=coordinator.example:7777 FSDPD_COORDINATOR_CA=ca.crt FSDPD_TOKEN_FILE=service.token \\
        orchestrate.py RUN job.yaml

RUN is the service's name of the run. It determines the request id, so after a crash of the service the same command
finds the job that it submitted before, and no job runs twice. Prints JSON lines. Exit code 0: the job succeeded.
"""

import json
import pathlib
import sys

import fsdpd

LAST_LINES = 20


def emit(kind, **fields):
    print(json.dumps({"kind": kind, **fields}), flush=True)


def follow(client, job_id):
    """Follows a job until it has ended, and returns it."""
    job = None
    for update in client.watch(job_id):
        if isinstance(update, fsdpd.StepDone):
            report = update.report
            emit("step", step=report.step, loss=report.loss, missed=update.missed)
            continue
        job = update.job
        if update.missed:
            emit("steps_missed", missed=update.missed)
        for event in update.events:
            emit("event", state=fsdpd.JobState.Name(event.state), message=event.message)
    return job


def orchestrate(client, run, spec):
    submission = client.submit(spec, request_id=f"orchestrate-{run}")
    for fault in submission.violations:
        emit("warning", field=fault.field, reason=fault.reason)
    emit("submitted", job=submission.job.id)
    job = follow(client, submission.job.id)
    if job.state == fsdpd.JobState.JOB_STATE_SUCCEEDED:
        checkpoints = [{"step": each.step, "path": each.path} for each in job.checkpoints]
        emit("succeeded", steps=job.last_step.step, loss=job.last_step.loss, checkpoints=checkpoints)
        return True
    emit("failed", state=fsdpd.JobState.Name(job.state), reason=job.reason, rank=job.failure.rank,
         node=job.failure.node)
    try:
        for line in client.logs(job.id, rank=max(job.failure.rank, 0), tail_lines=LAST_LINES):
            emit("log", rank=line.rank, line=line.text)
    except (fsdpd.WrongState, fsdpd.NotFound) as error:  # The job was never launched, or its logs are deleted.
        emit("no_logs", reason=error.reason)
    return False


def main():
    if len(sys.argv) != 3:
        print(f"usage: {sys.argv[0]} RUN job.yaml", file=sys.stderr)
        return 2
    run, path = sys.argv[1:]
    try:
        with fsdpd.Client() as client:
            return 0 if orchestrate(client, run, pathlib.Path(path)) else 1
    except fsdpd.SpecError as error:
        for fault in error.violations:
            emit("fault", rule=fault.rule, field=fault.field, reason=fault.reason, fix=fault.fix)
        return 3
    except fsdpd.Error as error:
        emit("error", code=error.code.name, reason=error.reason, message=error.message)
        return 2
    except (OSError, ValueError) as error:  # The spec, token or CA file is missing, or the address is invalid.
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
