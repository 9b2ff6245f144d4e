//go:build live

// Tests against a running coordinator with one node of two slots, given by FSDPD_SERVER and the other variables.
package fsdpd

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"fsdpd/clients/go/api"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const endless = 10_000_000

func connected(t *testing.T) (context.Context, *Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	client, err := New(FromEnvironment())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); cancel() })
	return ctx, client
}

func small(steps int64) *api.JobSpec {
	n := proto.Int64
	return &api.JobSpec{
		Name: "tiny",
		Model: &api.Model{Source: &api.Model_Llama{Llama: &api.Llama{VocabSize: n(256), HiddenSize: n(32),
			IntermediateSize: n(64), Layers: n(2), Heads: n(4), KvHeads: n(2)}}},
		Data:      &api.Data{Synthetic: &api.Synthetic{}, SequenceLength: n(16)},
		Train:     &api.Train{Steps: n(steps), GlobalBatch: n(4)},
		Resources: &api.Resources{RanksPerNode: n(2), Device: api.Device_DEVICE_CPU},
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func TestValidatePlanSubmitAndWatch(t *testing.T) {
	ctx, client := connected(t)
	must[[]*api.Violation](t)(client.Validate(ctx, small(4)))
	if plan := must[*api.Plan](t)(client.Plan(ctx, small(4))); plan.GetWorldSize() != 2 {
		t.Errorf("planned for %d ranks", plan.GetWorldSize())
	}
	submission := must[*Submission](t)(client.Submit(ctx, small(4), ""))
	again := must[*Submission](t)(client.Submit(ctx, small(4), submission.RequestID))
	if id := submission.Job.GetId(); again.Job.GetId() != id {
		t.Errorf("%s was submitted again as %s", id, again.Job.GetId())
	}
	id := submission.Job.GetId()
	next := must[*Submission](t)(client.SubmitWith(ctx, small(2), "", SubmitOptions{After: []string{id}, Project: "go"}))
	job := must[*api.Job](t)(client.Wait(ctx, id, nil))
	must[*api.Job](t)(client.Wait(ctx, next.Job.GetId(), nil))
	ofProject := 0
	for of, err := range client.JobsOf(ctx, "go") {
		if err != nil || of.GetId() != next.Job.GetId() {
			t.Errorf("%v is not the one job of its project: %v", of, err)
		}
		ofProject++
	}
	if ofProject != 1 {
		t.Errorf("%d jobs of the project", ofProject)
	}
	if job.GetState() != api.JobState_JOB_STATE_SUCCEEDED {
		t.Errorf("ended as %v: %s", job.GetState(), job.GetReason())
	}
	lines := 0
	for line, err := range client.Logs(ctx, &api.TailLogsRequest{Id: job.GetId(), Rank: proto.Int32(1)}) {
		if err != nil || line.GetRank() != 1 {
			t.Fatal(line, err)
		}
		lines++
	}
	steps := []int64{}
	for page, err := range client.Steps(ctx, &api.ListStepsRequest{Id: job.GetId(), PageSize: 3}) {
		if err != nil || len(page.GetMissing()) > 0 {
			t.Fatal(page, err)
		}
		for _, step := range page.GetSteps() {
			steps = append(steps, step.GetStep())
		}
	}
	if !slices.Equal(steps, []int64{1, 2, 3, 4}) {
		t.Errorf("it has made steps %v", steps)
	}
	timeline := must[*api.GetStepTimelineResponse](t)(client.StepTimeline(ctx, id))
	if step := timeline.GetTimeline().GetStep(); timeline.GetAttempt() != 1 || step < 1 || step > 4 {
		t.Errorf("step %d of attempt %d", step, timeline.GetAttempt())
	}
	found := false
	for each, err := range client.Jobs(ctx, api.JobState_JOB_STATE_SUCCEEDED) {
		found = found || err == nil && each.GetId() == job.GetId()
	}
	if lines == 0 || !found {
		t.Errorf("%d lines; in the list: %v", lines, found)
	}
	must[*api.Job](t)(client.Delete(ctx, job.GetId()))
	if _, err := client.Get(ctx, job.GetId()); status.Code(err) != codes.NotFound || ReasonOf(err) != "JOB_NOT_FOUND" {
		t.Errorf("a deleted job: %v", err)
	}
}

func TestEventsOfUnknownAndDeletedJob(t *testing.T) {
	ctx, client := connected(t)
	spec := small(4)
	spec.Resources = &api.Resources{Nodes: proto.Int64(50), RanksPerNode: proto.Int64(2)}
	spec.Train.GlobalBatch = proto.Int64(100)
	job := must[*Submission](t)(client.Submit(ctx, spec, "")).Job
	must[*api.Job](t)(client.Cancel(ctx, job.GetId(), "", nil))
	must[*api.Job](t)(client.Delete(ctx, job.GetId()))
	of := func(request *api.ListEventsRequest) (count int, last error) {
		for _, err := range client.Events(ctx, request) {
			if last = err; err == nil {
				count++
			}
		}
		return count, last
	}
	if count, err := of(&api.ListEventsRequest{Job: job.GetId()}); count == 0 || err != nil {
		t.Errorf("a deleted job has %d events, %v", count, err)
	}
	if count, err := of(&api.ListEventsRequest{Job: job.GetId(), SinceUnixNanos: math.MaxInt64}); count != 0 || err != nil {
		t.Errorf("it has %d events of the future, %v", count, err)
	}
	if _, err := of(&api.ListEventsRequest{Job: "nope"}); ReasonOf(err) != "JOB_NOT_FOUND" {
		t.Errorf("a job that does not exist: %v", err)
	}
}

func TestListsAndConditionalCancel(t *testing.T) {
	ctx, client := connected(t)
	spec := small(4)
	spec.Resources = &api.Resources{Nodes: proto.Int64(50), RanksPerNode: proto.Int64(2)}
	spec.Train.GlobalBatch = proto.Int64(100)
	job := must[*Submission](t)(client.Submit(ctx, spec, "")).Job
	found := 0
	for each, err := range client.JobsWhere(ctx, &api.ListJobsRequest{IdPrefix: job.GetId(), OrderBy: "create_time"}) {
		if err != nil || each.GetId() != job.GetId() {
			t.Fatal(each, err)
		}
		found++
	}
	nodes, err := client.NodesWhere(ctx, &api.ListNodesRequest{OrderBy: "slots desc"})
	if found != 1 || len(nodes) == 0 || err != nil {
		t.Errorf("%d jobs, %d nodes, %v", found, len(nodes), err)
	}
	kinds := []api.EventKind{}
	for event, err := range client.Events(ctx, &api.ListEventsRequest{Job: job.GetId(), PageSize: 1, OrderBy: "sequence desc"}) {
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, event.GetKind())
	}
	if len(kinds) == 0 || kinds[len(kinds)-1] != api.EventKind_EVENT_KIND_SUBMITTED {
		t.Errorf("events %v", kinds)
	}
	// The reason of a queued job may change at any time.
	for {
		seen := must[*api.Job](t)(client.Get(ctx, job.GetId()))
		if _, err = client.IfUnchanged(seen).Cancel(ctx, job.GetId(), "", nil); ReasonOf(err) != "JOB_CHANGED" {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.IfUnchanged(job).Delete(ctx, job.GetId()); ReasonOf(err) != "JOB_CHANGED" {
		t.Errorf("a job that has changed: %v", err)
	}
	if _, err := client.IfUnchanged(&api.Job{Id: job.GetId()}).Delete(ctx, job.GetId()); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a job without an etag: %v", err)
	}
}

func TestPauseResumeAndCancel(t *testing.T) {
	ctx, client := connected(t)
	spec := small(endless)
	spec.Checkpoint = &api.Checkpoint{Dir: t.TempDir()}
	id := must[*Submission](t)(client.Submit(ctx, spec, "")).Job.GetId()
	is := func(state api.JobState) func(*api.Job) bool {
		return func(job *api.Job) bool { return job.GetState() == state }
	}
	must[*api.Job](t)(client.Wait(ctx, id, is(api.JobState_JOB_STATE_RUNNING)))
	for update, err := range client.Watch(ctx, id) {
		if err != nil || update.Step != nil {
			break
		}
	}
	must[*api.Job](t)(client.Pause(ctx, id, "for a while", nil))
	paused := must[*api.Job](t)(client.Wait(ctx, id, is(api.JobState_JOB_STATE_PAUSED)))
	if paused.GetPause().GetStep() == 0 {
		t.Errorf("paused as %v", paused)
	}
	if _, err := client.Delete(ctx, id); ReasonOf(err) != "JOB_NOT_ENDED" {
		t.Errorf("a paused job is deleted: %v", err)
	}
	must[*api.Job](t)(client.Resume(ctx, id, ""))
	must[*api.Job](t)(client.Cancel(ctx, id, "", proto.Int64(0)))
	if job := must[*api.Job](t)(client.Wait(ctx, id, nil)); job.GetState() != api.JobState_JOB_STATE_CANCELLED {
		t.Errorf("ended as %v", job.GetState())
	}
	must[*api.Job](t)(client.Retry(ctx, id, ""))
	must[*api.Job](t)(client.Cancel(ctx, id, "", proto.Int64(0)))
	must[*api.Job](t)(client.Wait(ctx, id, nil))
}

func TestTraceAndDrain(t *testing.T) {
	ctx, client := connected(t)
	spec := small(endless)
	spec.Checkpoint = &api.Checkpoint{Dir: t.TempDir()}
	id := must[*Submission](t)(client.Submit(ctx, spec, "")).Job.GetId()
	// Steps of rank 0 may be reported before the last rank is known to be running.
	must[*api.Job](t)(client.Wait(ctx, id, func(job *api.Job) bool { return job.GetState() == api.JobState_JOB_STATE_RUNNING }))
	for update, err := range client.Watch(ctx, id) {
		if err != nil || update.Step.GetStep() >= 2 {
			break
		}
	}
	var order *api.TraceJobResponse_Order
	files, lines := 0, map[int32]int{}
	for update, err := range client.Trace(ctx, &api.TraceJobRequest{Id: id, Steps: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		if order == nil {
			order = update.GetOrder()
		} else if update.GetTrace() != nil {
			files++
		} else {
			lines[update.GetLine().GetRank()]++
		}
	}
	if order.GetRanks() != 2 || files != 2 || lines[0] == 0 || lines[1] == 0 {
		t.Errorf("order %v, %d files, lines %v", order, files, lines)
	}
	var newest int64
	for event, err := range client.Events(ctx, &api.ListEventsRequest{PageSize: 1, OrderBy: "sequence desc"}) {
		if newest = event.GetSequence(); err != nil {
			t.Fatal(err)
		}
		break
	}
	if node := must[*api.Node](t)(client.Drain(ctx, "node-0", "a fan", nil, false)); node.GetCordon().GetDrain() == nil {
		t.Errorf("drained as %v", node)
	}
	var kinds []api.EventKind
	for event, err := range client.WatchEvents(ctx, &api.WatchEventsRequest{Node: "node-0", After: newest}) {
		if err != nil {
			t.Fatal(err)
		}
		if kinds = append(kinds, event.GetKind()); event.GetKind() == api.EventKind_EVENT_KIND_NODE_DRAINED {
			break
		}
	}
	if kinds[0] != api.EventKind_EVENT_KIND_DRAINING || !slices.Contains(kinds, api.EventKind_EVENT_KIND_RANKS_EXITED) {
		t.Errorf("events %v", kinds)
	}
	must[*api.Node](t)(client.Uncordon(ctx, "node-0"))
	must[*api.Job](t)(client.Wait(ctx, id, func(job *api.Job) bool { return job.GetRestored().GetStep() > 0 }))
	must[*api.Job](t)(client.Cancel(ctx, id, "", proto.Int64(0)))
	if job := must[*api.Job](t)(client.Wait(ctx, id, nil)); job.GetAttempt() != 2 {
		t.Errorf("it ran in %d attempts", job.GetAttempt())
	}
}

func TestErrorsHaveFaultsAndReasons(t *testing.T) {
	ctx, client := connected(t)
	bad := small(4)
	bad.Train.GlobalBatch = proto.Int64(3)
	_, err := client.Submit(ctx, bad, "")
	var refused *Error
	if !errors.As(err, &refused) || refused.Reason != "INVALID_SPEC" || refused.Violations[0].GetField() != "train.global_batch" {
		t.Errorf("a bad spec: %v", err)
	}
	if _, err := client.Cordon(ctx, "node-99", ""); ReasonOf(err) != "NODE_NOT_FOUND" {
		t.Errorf("a node that is not there: %v", err)
	}
	if node := must[*api.Node](t)(client.Cordon(ctx, "node-0", "a fan")); node.GetCordon().GetReason() != "a fan" {
		t.Errorf("cordoned as %v", node)
	}
	must[*api.Node](t)(client.Uncordon(ctx, "node-0"))
	if _, err := client.DeleteNode(ctx, "node-0", true); ReasonOf(err) != "NODE_NOT_IDLE" {
		t.Errorf("a node whose agent is connected was deleted: %v", err)
	}
	nodes := must[[]*api.Node](t)(client.Nodes(ctx))
	if version := must[string](t)(client.Version(ctx)); len(nodes) != 1 || version != nodes[0].GetVersion() {
		t.Errorf("version %s, nodes %v", version, nodes)
	}
	options := FromEnvironment()
	options.TokenFile, options.Token = "", "nobody-knows-it"
	stranger := must[*Client](t)(New(options))
	defer stranger.Close()
	if _, err := stranger.Nodes(ctx); status.Code(err) != codes.Unauthenticated {
		t.Errorf("an unknown token: %v", err)
	}
}

func TestContextEndsWatchAndCall(t *testing.T) {
	ctx, client := connected(t)
	id := must[*Submission](t)(client.Submit(ctx, small(endless), "")).Job.GetId()
	defer client.Cancel(ctx, id, "", proto.Int64(0))
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	var last error
	for _, err := range client.Watch(own, id) {
		cancel()
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("a watch whose context ended: %v", last)
	}
	if _, err := client.Get(own, id); !errors.Is(err, context.Canceled) {
		t.Errorf("a call: %v", err)
	}
}

func TestRejectsInvalidOptions(t *testing.T) {
	options := FromEnvironment()
	if err := os.Chmod(options.TokenFile, 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(options.TokenFile, 0o600)
	for _, wrong := range []Options{options, {Address: "nonsense"}, {CAFile: "/nothing/here"}} {
		if _, err := New(wrong); err == nil {
			t.Errorf("%+v is accepted", wrong)
		}
	}
}
