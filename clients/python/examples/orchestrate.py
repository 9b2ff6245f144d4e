#!/usr/bin/env python3
"""What a service that runs trainings for others does with one: submits it, follows it, and keeps what came of it.

    FSDPD_SERVER=coordinator.example:7777 FSDPD_COORDINATOR_CA=ca.crt FSDPD_TOKEN_FILE=service.token \\
        orchestrate.py RUN job.yaml

RUN is the service's own name of the training. It makes the request id, so the same command after a crash of the service
finds the job that it submitted before, and a training is never run twice. Prints lines of JSON; exit code 0: succeeded.
"""

import json
import pathlib
import sys

import fsdpd

LAST_LINES = 20


def tell(kind, **fields):
    print(json.dumps({"kind": kind, **fields}), flush=True)


def follow(client, job_id):
    """The job as it ended."""
    job = None
    for update in client.watch(job_id):
        if isinstance(update, fsdpd.StepDone):
            report = update.report
            tell("step", step=report.step, loss=report.loss, missed=update.missed)
            continue
        job = update.job
        if update.missed:
            tell("steps_missed", missed=update.missed)
        for event in update.events:
            tell("event", state=fsdpd.JobState.Name(event.state), message=event.message)
    return job


def orchestrate(client, run, spec):
    submission = client.submit(spec, request_id=f"orchestrate-{run}")
    for fault in submission.faults:
        tell("warning", field=fault.field, reason=fault.reason)
    tell("submitted", job=submission.job.id)
    job = follow(client, submission.job.id)
    if job.state == fsdpd.JobState.JOB_STATE_SUCCEEDED:
        checkpoints = [{"step": each.step, "path": each.path} for each in job.checkpoints]
        tell("succeeded", steps=job.last_step.step, loss=job.last_step.loss, checkpoints=checkpoints)
        return True
    tell("failed", state=fsdpd.JobState.Name(job.state), reason=job.reason, rank=job.failure.rank,
         node=job.failure.node)
    try:
        for line in client.logs(job.id, rank=max(job.failure.rank, 0), tail_lines=LAST_LINES):
            tell("log", rank=line.rank, line=line.text)
    except (fsdpd.WrongState, fsdpd.NotFound) as error:  # It was never launched, or its logs are gone.
        tell("no_logs", reason=error.reason)
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
        for fault in error.faults:
            tell("fault", rule=fault.rule, field=fault.field, reason=fault.reason, fix=fault.fix)
        return 3
    except fsdpd.Error as error:
        tell("error", code=error.code.name, reason=error.reason, message=error.message)
        return 2
    except (OSError, ValueError) as error:  # No such spec, token or authority, or no address.
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
