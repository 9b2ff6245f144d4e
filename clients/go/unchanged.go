package fsdpd

import (
	"context"

	"fsdpd/clients/go/api"
)

// Unchanged asks for something only as long as a job is as it was seen: an Error with the reason JOB_CHANGED says that
// it is not. Of a call that was repeated by itself, that it was heard before may be the reason.
type Unchanged struct {
	client *Client
	etag   string // Empty: whatever the job is.
}

// IfUnchanged is for the job as it was seen; it is asked for by its id.
func (c *Client) IfUnchanged(seen *api.Job) Unchanged { return Unchanged{c, seen.GetEtag()} }

// Cancel is Client.Cancel.
func (u Unchanged) Cancel(ctx context.Context, id, reason string, grace *int64) (*api.Job, error) {
	request := &api.CancelJobRequest{Id: id, Reason: reason, GraceSeconds: grace, Etag: u.etag}
	response, err := call(ctx, u.client, "CancelJob", api.CoordinatorClient.CancelJob, request)
	return response.GetJob(), err
}

// Pause is Client.Pause.
func (u Unchanged) Pause(ctx context.Context, id, reason string, grace *int64) (*api.Job, error) {
	request := &api.PauseJobRequest{Id: id, Reason: reason, GraceSeconds: grace, Etag: u.etag}
	response, err := call(ctx, u.client, "PauseJob", api.CoordinatorClient.PauseJob, request)
	return response.GetJob(), err
}

// Resume is Client.Resume.
func (u Unchanged) Resume(ctx context.Context, id, reason string) (*api.Job, error) {
	request := &api.ResumeJobRequest{Id: id, Reason: reason, Etag: u.etag}
	response, err := call(ctx, u.client, "ResumeJob", api.CoordinatorClient.ResumeJob, request)
	return response.GetJob(), err
}

// Retry is Client.Retry.
func (u Unchanged) Retry(ctx context.Context, id, reason string) (*api.Job, error) {
	request := &api.RetryJobRequest{Id: id, Reason: reason, Etag: u.etag}
	response, err := call(ctx, u.client, "RetryJob", api.CoordinatorClient.RetryJob, request)
	return response.GetJob(), err
}

// Delete is Client.Delete.
func (u Unchanged) Delete(ctx context.Context, id string) (*api.Job, error) {
	request := &api.DeleteJobRequest{Id: id, Etag: u.etag}
	response, err := call(ctx, u.client, "DeleteJob", api.CoordinatorClient.DeleteJob, request)
	return response.GetJob(), err
}
