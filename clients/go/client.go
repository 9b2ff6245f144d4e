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

// Client calls the coordinator, of several the one that leads. Safe for several goroutines. A call without a deadline
// gets that of calls.json; one that finds no coordinator is tried again for so long, where it may be repeated.
type Client struct {
	places       *places
	reconnectFor time.Duration
}

// New connects when it is first called, so an error here is of the options.
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

// Close ends every stream too.
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

// Submission is what became of a Submit.
type Submission struct {
	Job       *api.Job
	Faults    []*api.Fault // Values that were adjusted, and warnings.
	RequestID string       // Finds the same job again.
}

// SubmitOptions say of a job what is not its spec's.
type SubmitOptions struct {
	After       []string // Ids of jobs that have to succeed first.
	Preemptible bool     // It may be told to save and leave for others.
	Project     string   // Empty: that of the token.
}

// Submit queues a job. With the same requestID (at most 64 characters; empty: a new one), spec and options it is the
// same job, however often and from wherever it is submitted.
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
	return &Submission{response.GetJob(), response.GetFaults(), requestID}, nil
}

// Validate has all faults of a spec.
func (c *Client) Validate(ctx context.Context, spec *api.JobSpec) ([]*api.Fault, error) {
	response, err := call(ctx, c, "ValidateJob", api.CoordinatorClient.ValidateJob, &api.ValidateJobRequest{Spec: spec})
	return response.GetFaults(), err
}

// Plan says what a spec would do.
func (c *Client) Plan(ctx context.Context, spec *api.JobSpec) (*api.Plan, error) {
	response, err := call(ctx, c, "PlanJob", api.CoordinatorClient.PlanJob, &api.PlanJobRequest{Spec: spec})
	return response.GetPlan(), err
}

// Search has the fastest ways to run a spec that train the same; fields in `hold` stay as they are.
func (c *Client) Search(ctx context.Context, spec *api.JobSpec, hold ...string) (*api.PlanSearch, error) {
	request := &api.SearchPlansRequest{Spec: spec, Hold: hold}
	response, err := call(ctx, c, "SearchPlans", api.CoordinatorClient.SearchPlans, request)
	return response.GetSearch(), err
}

// Get is the job as it is now.
func (c *Client) Get(ctx context.Context, id string) (*api.Job, error) {
	response, err := call(ctx, c, "GetJob", api.CoordinatorClient.GetJob, &api.GetJobRequest{Id: id})
	return response.GetJob(), err
}

// Jobs are those of the token's project, or all for a token without one, newest first; of all states where none is
// named. An error is the last that comes.
func (c *Client) Jobs(ctx context.Context, states ...api.JobState) iter.Seq2[*api.Job, error] {
	return c.list(ctx, &api.ListJobsRequest{States: states})
}

// JobsOf is Jobs of one project, whoever asks; empty: of all.
func (c *Client) JobsOf(ctx context.Context, project string, states ...api.JobState) iter.Seq2[*api.Job, error] {
	return c.list(ctx, &api.ListJobsRequest{States: states, Project: project, AllProjects: project == ""})
}

// JobsWhere are those that the request asks for, in its order, all pages.
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

// Steps has what is kept of each step of a job, as the request says, by pages: with what is missing of each, and why.
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

// Course is how the newest step went that a job's rank 0 has told of, at most once a second: what its lanes ran when, and
// its memory by component; and which attempt made it.
func (c *Client) Course(ctx context.Context, id string) (*api.GetStepCourseResponse, error) {
	return call(ctx, c, "GetStepCourse", api.CoordinatorClient.GetStepCourse, &api.GetStepCourseRequest{Id: id})
}

// Cancel ends a job. Ranks have `grace` seconds; nil: the coordinator's default.
func (c *Client) Cancel(ctx context.Context, id, reason string, grace *int64) (*api.Job, error) {
	return Unchanged{client: c}.Cancel(ctx, id, reason, grace)
}

// Pause has a job's ranks save and leave, within `grace` seconds; nil: the coordinator's default.
func (c *Client) Pause(ctx context.Context, id, reason string, grace *int64) (*api.Job, error) {
	return Unchanged{client: c}.Pause(ctx, id, reason, grace)
}

// Resume queues a paused job again.
func (c *Client) Resume(ctx context.Context, id, reason string) (*api.Job, error) {
	return Unchanged{client: c}.Resume(ctx, id, reason)
}

// Retry queues a failed or cancelled job again, under its id.
func (c *Client) Retry(ctx context.Context, id, reason string) (*api.Job, error) {
	return Unchanged{client: c}.Retry(ctx, id, reason)
}

// Delete forgets an ended job. Not tried again: of a repeated call nobody could say whether the first one was heard.
func (c *Client) Delete(ctx context.Context, id string) (*api.Job, error) {
	return Unchanged{client: c}.Delete(ctx, id)
}

// Nodes are the agents that the coordinator knows.
func (c *Client) Nodes(ctx context.Context) ([]*api.Node, error) {
	return c.NodesWhere(ctx, &api.ListNodesRequest{})
}

// NodesWhere are those that the request's filter holds for, in its order.
func (c *Client) NodesWhere(ctx context.Context, request *api.ListNodesRequest) ([]*api.Node, error) {
	response, err := call(ctx, c, "ListNodes", api.CoordinatorClient.ListNodes, request)
	return response.GetNodes(), err
}

// Events is what has happened to jobs and nodes, as the request says and as far as it is kept, all pages. Where some of
// a job or node is not, an event of the kind FORGOTTEN says how many. An error is the last that comes: NotFound for a job
// that does not exist and that no event is kept of.
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
		if status.Code(lost) == codes.NotFound { // Or deleted, with events that the rest of the request excludes.
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

// A gap in the log is reported to every reader: it shows a job's existence only where it names the job.
func isEventOf(event *api.Event, job string) bool {
	return event.GetKind() != api.EventKind_EVENT_KIND_FORGOTTEN || job != "" && event.GetJob() == job
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
				next.After = 0 // The token says it.
			}
			if next.PageToken = page.GetNextPageToken(); next.PageToken == "" {
				return
			}
		}
	}
}

// Cordon has no job placed on a node any more.
func (c *Client) Cordon(ctx context.Context, node, reason string) (*api.Node, error) {
	response, err := call(ctx, c, "CordonNode", api.CoordinatorClient.CordonNode, &api.CordonNodeRequest{Node: node, Reason: reason})
	return response.GetNode(), err
}

// Uncordon opens a node again.
func (c *Client) Uncordon(ctx context.Context, node string) (*api.Node, error) {
	response, err := call(ctx, c, "UncordonNode", api.CoordinatorClient.UncordonNode, &api.UncordonNodeRequest{Node: node})
	return response.GetNode(), err
}

// Drain cordons a node and has the jobs there save, leave and go on elsewhere; Cordon.Drain of Nodes says how far it is.
// Ranks have `grace` seconds to save; nil: the coordinator's default. With `force` also jobs leave that write no
// checkpoints, and lose their steps.
func (c *Client) Drain(ctx context.Context, node, reason string, grace *int64, force bool) (*api.Node, error) {
	request := &api.DrainNodeRequest{Node: node, Reason: reason, GraceSeconds: grace, Force: force}
	response, err := call(ctx, c, "DrainNode", api.CoordinatorClient.DrainNode, request)
	return response.GetNode(), err
}

// DeleteNode removes a node that is lost or has left, with its cordon and preflight result; an agent of that name may
// register again. It returns the node as it was. Refused for a node that is ready, not lost yet, or hosts ranks
// (NODE_NOT_IDLE); without `force` also for a lost node whose ranks may still run (RANKS_UNCONFIRMED).
func (c *Client) DeleteNode(ctx context.Context, node string, force bool) (*api.Node, error) {
	response, err := call(ctx, c, "DeleteNode", api.CoordinatorClient.DeleteNode, &api.DeleteNodeRequest{Node: node, Force: force})
	return response.GetNode(), err
}

// Preflight begins to measure a node; Node.preflight of Nodes has the result once in_preflight is false there.
func (c *Client) Preflight(ctx context.Context, node string) (*api.Node, error) {
	response, err := call(ctx, c, "PreflightNode", api.CoordinatorClient.PreflightNode, &api.PreflightNodeRequest{Node: node})
	return response.GetNode(), err
}

// Version is the coordinator's.
func (c *Client) Version(ctx context.Context) (string, error) {
	response, err := call(ctx, c, "GetVersion", api.CoordinatorClient.GetVersion, &api.GetVersionRequest{})
	return response.GetVersion(), err
}
