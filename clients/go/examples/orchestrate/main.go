// Example of a service that runs one job: it submits the job, follows it, and reports the result.
//
//	FSDPD_SERVER=coordinator.example:7777 FSDPD_COORDINATOR_CA=ca.crt FSDPD_TOKEN_FILE=service.token \
//	    orchestrate RUN job.json
//
// RUN is the service's name of the run. It determines the request id, so after a crash of the service the same command
// finds the job that it submitted before, and no job runs twice. Prints JSON lines. Exit code 0: the job succeeded.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	fsdpd "fsdpd/clients/go"
	"fsdpd/clients/go/api"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const lastLines = 20

type fields map[string]any

func emit(kind string, more fields) {
	more["kind"] = kind
	json.NewEncoder(os.Stdout).Encode(more)
}

// follow follows a job until it has ended, and returns it.
func follow(ctx context.Context, client *fsdpd.Client, id string) (*api.Job, error) {
	var job *api.Job
	for update, err := range client.Watch(ctx, id) {
		if err != nil {
			return nil, err
		}
		if update.Step != nil {
			emit("step", fields{"step": update.Step.GetStep(), "loss": update.Step.GetLoss(), "missed": update.Missed})
			continue
		}
		job = update.Job
		if update.Missed > 0 {
			emit("steps_missed", fields{"missed": update.Missed})
		}
		for _, event := range update.Events {
			emit("event", fields{"state": event.GetState().String(), "message": event.GetMessage()})
		}
	}
	return job, nil
}

func emitLogs(ctx context.Context, client *fsdpd.Client, job *api.Job) error {
	rank := max(job.GetFailure().GetRank(), 0)
	for line, err := range client.Logs(ctx, &api.TailLogsRequest{Id: job.GetId(), Rank: &rank, TailLines: lastLines}) {
		switch status.Code(err) {
		case codes.OK:
			emit("log", fields{"rank": line.GetRank(), "line": line.GetLine()})
		case codes.FailedPrecondition, codes.NotFound: // The job was never launched, or its logs are deleted.
			emit("no_logs", fields{"reason": fsdpd.ReasonOf(err)})
		default:
			return err
		}
	}
	return nil
}

// orchestrate runs the job and reports whether it succeeded.
func orchestrate(ctx context.Context, run, path string) (bool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	spec, err := fsdpd.ReadSpec(text)
	if err != nil {
		return false, err
	}
	client, err := fsdpd.New(fsdpd.FromEnvironment())
	if err != nil {
		return false, err
	}
	defer client.Close()
	submission, err := client.Submit(ctx, spec, "orchestrate-"+run)
	if err != nil {
		return false, err
	}
	for _, fault := range submission.Violations {
		emit("warning", fields{"field": fault.GetField(), "reason": fault.GetReason()})
	}
	emit("submitted", fields{"job": submission.Job.GetId()})
	job, err := follow(ctx, client, submission.Job.GetId())
	if err != nil {
		return false, err
	}
	if job.GetState() != api.JobState_JOB_STATE_SUCCEEDED {
		emit("failed", fields{"state": job.GetState().String(), "reason": job.GetReason(),
			"rank": job.GetFailure().GetRank(), "node": job.GetFailure().GetNode()})
		return false, emitLogs(ctx, client, job)
	}
	checkpoints := []fields{}
	for _, each := range job.GetCheckpoints() {
		checkpoints = append(checkpoints, fields{"step": each.GetStep(), "path": each.GetPath()})
	}
	emit("succeeded", fields{"steps": job.GetLastStep().GetStep(), "loss": job.GetLastStep().GetLoss(),
		"checkpoints": checkpoints})
	return true, nil
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: orchestrate RUN job.json")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	succeeded, err := orchestrate(ctx, os.Args[1], os.Args[2])
	var refused *fsdpd.Error
	switch {
	case errors.As(err, &refused) && refused.Reason == "INVALID_SPEC":
		for _, fault := range refused.Violations {
			emit("fault", fields{"rule": fault.GetRule(), "field": fault.GetField(), "reason": fault.GetReason(),
				"fix": fault.GetFix()})
		}
		emit("error", fields{"reason": refused.Reason, "message": refused.Message})
		os.Exit(3)
	case err != nil:
		emit("error", fields{"reason": fsdpd.ReasonOf(err), "message": err.Error()})
		os.Exit(2)
	case !succeeded:
		os.Exit(1)
	}
}
