// Package fsdpd is a client of fsdpd, a training service for sharded models.
//
//	client, err := fsdpd.New(fsdpd.FromEnvironment())
//	submission, err := client.Submit(ctx, spec, "nightly-2026-11-23")
//	for update, err := range client.Watch(ctx, submission.Job.GetId()) {
//		...
//	}
//
// Jobs, specs and nodes are the protobuf messages of the API (package api); proto/fsdpd/v1 documents their fields.
// ./generate generates package api from the protos of a clone. Calls that fail return an *Error.
package fsdpd

//go:generate ./generate
