package fsdpd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"iter"
	"strings"
	"time"

	"fsdpd/clients/go/api"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const pageSize = 100

// Client calls the coordinator, or the leader of several. It is safe for concurrent use. A call without a deadline gets
// the one in calls.json. A call that is safe to repeat is retried until its deadline while no coordinator is reachable.
type Client struct {
	places       *places
	reconnectFor time.Duration
}

// New returns a client that connects at its first call. An error means that the options are invalid.
func New(options Options) (*Client, error) {
	addresses, err := options.addresses()
	if err != nil {
		return nil, err
	}
	dial, err := options.dialOptions()
	if err != nil {
		return nil, err
	}
	places, err := newPlaces(addresses, dial)
	if err != nil {
		return nil, err
	}
	reconnectFor := options.ReconnectFor
	if reconnectFor == 0 {
		reconnectFor = time.Duration(calls.FollowReconnectSeconds) * time.Second
	}
	return &Client{places, reconnectFor}, nil
}

// Close closes all connections, which also ends open streams.
func (c *Client) Close() error { return c.places.close() }

type method[Q, R any] func(api.CoordinatorClient, context.Context, *Q, ...grpc.CallOption) (*R, error)

func call[Q, R any](ctx context.Context, c *Client, name string, method method[Q, R], request *Q) (*R, error) {
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, calls.deadline(name))
		defer cancel()
	}
	tries := newTries(name, request)
	for {
		place := c.places.now()
		response, err := method(place.stub, ctx, request)
		if err == nil {
			return response, nil
		}
		failed := fromRPC(err)
		if !tries.again(ctx, failed, c.places.move(place, failed)) {
			return nil, failed
		}
	}
}

// Submission is the result of Submit.
type Submission struct {
	Job        *api.Job
	Violations []*api.Violation // Adjustments and warnings.
	RequestID  string           // Submitting again with this id returns the same job.
}

// SubmitOptions are properties of a job that are not part of its spec.
type SubmitOptions struct {
	After       []string // Ids of jobs that must succeed first.
	Preemptible bool     // The job may be paused for one of higher priority.
	Project     string   // Empty: the token's project.
}

// Submit submits a job. Submitting again with the same requestID (at most 64 characters; empty: a new one), spec and
// options returns the same job.
func (c *Client) Submit(ctx context.Context, spec *api.JobSpec, requestID string) (*Submission, error) {
	return c.SubmitWith(ctx, spec, requestID, SubmitOptions{})
}

// SubmitWith is Submit with options.
func (c *Client) SubmitWith(
	ctx context.Context, spec *api.JobSpec, requestID string, options SubmitOptions,
) (*Submission, error) {
	if requestID == "" {
		var random [16]byte
		rand.Read(random[:]) // Never fails.
		requestID = hex.EncodeToString(random[:])
	}
	response, err := call(ctx, c, "SubmitJob", api.CoordinatorClient.SubmitJob, &api.SubmitJobRequest{
		Spec:        spec,
		RequestId:   requestID,
		After:       options.After,
		Preemptible: options.Preemptible,
		Project:     options.Project,
	})
	if err != nil {
		return nil, err
	}
	return &Submission{response.GetJob(), response.GetViolations(), requestID}, nil
}

// Validate returns all violations of a spec.
func (c *Client) Validate(ctx context.Context, spec *api.JobSpec) ([]*api.Violation, error) {
	response, err := call(ctx, c, "ValidateJob", api.CoordinatorClient.ValidateJob, &api.ValidateJobRequest{Spec: spec})
	return response.GetViolations(), err
}

// Plan returns the plan of a spec.
func (c *Client) Plan(ctx context.Context, spec *api.JobSpec) (*api.Plan, error) {
	response, err := call(ctx, c, "PlanJob", api.CoordinatorClient.PlanJob, &api.PlanJobRequest{Spec: spec})
	return response.GetPlan(), err
}

// Search returns the fastest equivalent configurations of a spec. Fields in `hold` are not changed.
func (c *Client) Search(ctx context.Context, spec *api.JobSpec, hold ...string) (*api.PlanSearch, error) {
	request := &api.SearchPlansRequest{Spec: spec, Hold: hold}
	response, err := call(ctx, c, "SearchPlans", api.CoordinatorClient.SearchPlans, request)
	return response.GetSearch(), err
}

// Get returns the current state of a job.
func (c *Client) Get(ctx context.Context, id string) (*api.Job, error) {
	response, err := call(ctx, c, "GetJob", api.CoordinatorClient.GetJob, &api.GetJobRequest{Id: id})
	return response.GetJob(), err
}

// Jobs yields the jobs of the token's project (all jobs for a token without a project), newest first. No states: jobs in
// any state. An error is the last element.
func (c *Client) Jobs(ctx context.Context, states ...api.JobState) iter.Seq2[*api.Job, error] {
	return c.list(ctx, &api.ListJobsRequest{States: states})
}

// JobsOf is Jobs for the given project instead of the token's; empty: all projects.
func (c *Client) JobsOf(ctx context.Context, project string, states ...api.JobState) iter.Seq2[*api.Job, error] {
	return c.list(ctx, &api.ListJobsRequest{States: states, Project: project, AllProjects: project == ""})
}

// JobsWhere yields the jobs that match the request, in its order, and fetches pages as needed.
func (c *Client) JobsWhere(ctx context.Context, request *api.ListJobsRequest) iter.Seq2[*api.Job, error] {
	return c.list(ctx, proto.Clone(request).(*api.ListJobsRequest))
}

func (c *Client) list(ctx context.Context, request *api.ListJobsRequest) iter.Seq2[*api.Job, error] {
	return func(yield func(*api.Job, error) bool) {
		request.PageSize = pageSize
		request.PageToken = ""
		for {
			page, err := call(ctx, c, "ListJobs", api.CoordinatorClient.ListJobs, request)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, job := range page.GetJobs() {
				if !yield(job, nil) {
					return
				}
			}
			if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
				return
			}
		}
	}
}

// Steps yields pages of step records of a job. Each page also has the missing steps and unreadable nodes with reasons.
func (c *Client) Steps(ctx context.Context, request *api.ListStepsRequest) iter.Seq2[*api.ListStepsResponse, error] {
	return func(yield func(*api.ListStepsResponse, error) bool) {
		next := proto.Clone(request).(*api.ListStepsRequest)
		for {
			page, err := call(ctx, c, "ListSteps", api.CoordinatorClient.ListSteps, next)
			if err != nil {
				yield(nil, err)
				return
			}
			if next.FromStep = page.GetNextStep(); !yield(page, nil) || next.FromStep == 0 {
				return
			}
		}
	}
}

// StepTimeline returns the step timeline of the newest step that rank 0 reported (at most one per second): the instructions of
// each lane with their times, the memory by component, and the attempt.
func (c *Client) StepTimeline(ctx context.Context, id string) (*api.GetStepTimelineResponse, error) {
	return call(ctx, c, "GetStepTimeline", api.CoordinatorClient.GetStepTimeline, &api.GetStepTimelineRequest{Id: id})
}

// Cancel cancels a job. Its ranks have `grace` seconds to exit; nil: the coordinator's default.
func (c *Client) Cancel(ctx context.Context, id, reason string, grace *int64) (*api.Job, error) {
	return Unchanged{client: c}.Cancel(ctx, id, reason, grace)
}

// Pause makes the ranks of a job save a checkpoint and exit within `grace` seconds; nil: the coordinator's default.
func (c *Client) Pause(ctx context.Context, id, reason string, grace *int64) (*api.Job, error) {
	return Unchanged{client: c}.Pause(ctx, id, reason, grace)
}

// Resume returns a paused job to the queue.
func (c *Client) Resume(ctx context.Context, id, reason string) (*api.Job, error) {
	return Unchanged{client: c}.Resume(ctx, id, reason)
}

// Retry returns a failed or cancelled job to the queue under the same id.
func (c *Client) Retry(ctx context.Context, id, reason string) (*api.Job, error) {
	return Unchanged{client: c}.Retry(ctx, id, reason)
}

// Delete deletes an ended job. It is not retried, because NotFound could then be the effect of the first try.
func (c *Client) Delete(ctx context.Context, id string) (*api.Job, error) {
	return Unchanged{client: c}.Delete(ctx, id)
}

// Nodes returns the nodes that the coordinator knows.
func (c *Client) Nodes(ctx context.Context) ([]*api.Node, error) {
	return c.NodesWhere(ctx, &api.ListNodesRequest{})
}

// NodesWhere returns the nodes in the order of the request.
func (c *Client) NodesWhere(ctx context.Context, request *api.ListNodesRequest) ([]*api.Node, error) {
	response, err := call(ctx, c, "ListNodes", api.CoordinatorClient.ListNodes, request)
	return response.GetNodes(), err
}

// Events yields the retained events of jobs and nodes that match the request, and fetches pages as needed. An event of
// kind EVENTS_DELETED has the number of deleted events of a job or node. An error is the last element: NotFound if the job does
// not exist and has no retained events.
func (c *Client) Events(ctx context.Context, request *api.ListEventsRequest) iter.Seq2[*api.Event, error] {
	return func(yield func(*api.Event, error) bool) {
		found := false
		for event, err := range c.pagesOfEvents(ctx, request) {
			found = found || err != nil || isEventOf(event, request.GetJob())
			if !yield(event, err) {
				return
			}
		}
		if found || request.GetJob() == "" {
			return
		}
		_, lost := c.Get(ctx, request.GetJob())
		if status.Code(lost) == codes.NotFound { // The job may be deleted, with retained events that the request excludes.
			for event, err := range c.pagesOfEvents(ctx, &api.ListEventsRequest{Job: request.GetJob()}) {
				if err == nil && isEventOf(event, request.GetJob()) {
					return
				}
			}
		}
		if lost != nil {
			yield(nil, lost)
		}
	}
}

// isEventOf reports whether the event proves that the job existed. An EVENTS_DELETED event proves it only if it names the job.
func isEventOf(event *api.Event, job string) bool {
	return event.GetKind() != api.EventKind_EVENT_KIND_EVENTS_DELETED || job != "" && event.GetJob() == job
}

func (c *Client) pagesOfEvents(ctx context.Context, request *api.ListEventsRequest) iter.Seq2[*api.Event, error] {
	return func(yield func(*api.Event, error) bool) {
		next := proto.Clone(request).(*api.ListEventsRequest)
		for {
			page, err := call(ctx, c, "ListEvents", api.CoordinatorClient.ListEvents, next)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, event := range page.GetEvents() {
				if !yield(event, nil) {
					return
				}
			}
			if !strings.HasSuffix(strings.TrimSpace(next.GetOrderBy()), "desc") {
				next.After = 0 // The page token contains the position.
			}
			if next.PageToken = page.GetNextPageToken(); next.PageToken == "" {
				return
			}
		}
	}
}

// Cordon prevents new placements on a node.
func (c *Client) Cordon(ctx context.Context, node, reason string) (*api.Node, error) {
	response, err := call(ctx, c, "CordonNode", api.CoordinatorClient.CordonNode, &api.CordonNodeRequest{Node: node, Reason: reason})
	return response.GetNode(), err
}

// Uncordon allows placements on a node again.
func (c *Client) Uncordon(ctx context.Context, node string) (*api.Node, error) {
	response, err := call(ctx, c, "UncordonNode", api.CoordinatorClient.UncordonNode, &api.UncordonNodeRequest{Node: node})
	return response.GetNode(), err
}

// Drain cordons a node and moves its jobs: they save a checkpoint, leave, and resume elsewhere. Cordon.Drain of Nodes has
// the progress. Ranks have `grace` seconds to save; nil: the coordinator's default. With `force`, jobs without checkpoints
// are moved too, and lose their steps.
func (c *Client) Drain(ctx context.Context, node, reason string, grace *int64, force bool) (*api.Node, error) {
	request := &api.DrainNodeRequest{Node: node, Reason: reason, GraceSeconds: grace, Force: force}
	response, err := call(ctx, c, "DrainNode", api.CoordinatorClient.DrainNode, request)
	return response.GetNode(), err
}

// DeleteNode removes a node that is lost or has left, with its cordon and preflight result, and returns its last state. An
// agent of that name may register again. It fails for a node that is ready, not lost yet, or hosts ranks (NODE_NOT_IDLE);
// without `force` also for a lost node whose ranks may still run (RANKS_UNCONFIRMED).
func (c *Client) DeleteNode(ctx context.Context, node string, force bool) (*api.Node, error) {
	response, err := call(ctx, c, "DeleteNode", api.CoordinatorClient.DeleteNode, &api.DeleteNodeRequest{Node: node, Force: force})
	return response.GetNode(), err
}

// Preflight starts a preflight of a node. The result is in Node.preflight of Nodes when in_preflight is false.
func (c *Client) Preflight(ctx context.Context, node string) (*api.Node, error) {
	response, err := call(ctx, c, "PreflightNode", api.CoordinatorClient.PreflightNode, &api.PreflightNodeRequest{Node: node})
	return response.GetNode(), err
}

// Version returns the version of the coordinator.
func (c *Client) Version(ctx context.Context) (string, error) {
	response, err := call(ctx, c, "GetVersion", api.CoordinatorClient.GetVersion, &api.GetVersionRequest{})
	return response.GetVersion(), err
}
