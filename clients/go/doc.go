// Package fsdpd is a client of fsdpd, a training service for sharded models.
//
//	client, err := fsdpd.New(fsdpd.FromEnvironment())
//	submission, err := client.Submit(ctx, spec, "nightly-2026-11-23")
//	for update, err := range client.Watch(ctx, submission.Job.GetId()) {
//		...
//	}
//
// Jobs, specs and nodes are the messages of the API (package api), whose comments in proto/fsdpd/v1 say what each field
// means. ./generate makes that package of a clone's protos. What is refused is an *Error.
package fsdpd

//go:generate ./generate
