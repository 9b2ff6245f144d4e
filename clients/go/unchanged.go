package fsdpd

import (
	"context"

	"google.golang.org/grpc/codes"

	"fsdpd/clients/go/api"
)

// Unchanged makes conditional calls: they fail with code Aborted and reason JOB_CHANGED if the job has changed since it
// was read. They are not retried, because a retry would conflict with its own change.
type Unchanged struct {
	client      *Client
	etag        string
	conditional bool // False: unconditional, like Client's methods.
}

// IfUnchanged returns calls that require the job to have the etag of `seen`. The calls take the id of the job.
func (c *Client) IfUnchanged(seen *api.Job) Unchanged { return Unchanged{c, seen.GetEtag(), true} }

// check rejects an empty etag: the coordinator would treat it as unconditional.
func (u Unchanged) check() error {
	if u.etag != "" || !u.conditional {
		return nil
	}
	return newError(codes.InvalidArgument, "the job has no etag: it comes from a coordinator without etags")
}

// Cancel is Client.Cancel.
func (u Unchanged) Cancel(ctx context.Context, id, reason string, grace *int64) (*api.Job, error) {
	if err := u.check(); err != nil {
		return nil, err
	}
	request := &api.CancelJobRequest{Id: id, Reason: reason, GraceSeconds: grace, Etag: u.etag}
	response, err := call(ctx, u.client, "CancelJob", api.CoordinatorClient.CancelJob, request)
	return response.GetJob(), err
}

// Pause is Client.Pause.
func (u Unchanged) Pause(ctx context.Context, id, reason string, grace *int64) (*api.Job, error) {
	if err := u.check(); err != nil {
		return nil, err
	}
	request := &api.PauseJobRequest{Id: id, Reason: reason, GraceSeconds: grace, Etag: u.etag}
	response, err := call(ctx, u.client, "PauseJob", api.CoordinatorClient.PauseJob, request)
	return response.GetJob(), err
}

// Resume is Client.Resume.
func (u Unchanged) Resume(ctx context.Context, id, reason string) (*api.Job, error) {
	if err := u.check(); err != nil {
		return nil, err
	}
	request := &api.ResumeJobRequest{Id: id, Reason: reason, Etag: u.etag}
	response, err := call(ctx, u.client, "ResumeJob", api.CoordinatorClient.ResumeJob, request)
	return response.GetJob(), err
}

// Retry is Client.Retry.
func (u Unchanged) Retry(ctx context.Context, id, reason string) (*api.Job, error) {
	if err := u.check(); err != nil {
		return nil, err
	}
	request := &api.RetryJobRequest{Id: id, Reason: reason, Etag: u.etag}
	response, err := call(ctx, u.client, "RetryJob", api.CoordinatorClient.RetryJob, request)
	return response.GetJob(), err
}

// Delete is Client.Delete.
func (u Unchanged) Delete(ctx context.Context, id string) (*api.Job, error) {
	if err := u.check(); err != nil {
		return nil, err
	}
	request := &api.DeleteJobRequest{Id: id, Etag: u.etag}
	response, err := call(ctx, u.client, "DeleteJob", api.CoordinatorClient.DeleteJob, request)
	return response.GetJob(), err
}
