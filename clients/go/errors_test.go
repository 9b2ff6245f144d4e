package fsdpd

import (
	"testing"

	"fsdpd/clients/go/api"

	"google.golang.org/grpc/codes"
)

func TestErrorTextEndsWithTheId(t *testing.T) {
	rule := &api.Violation{Field: "train.steps", Reason: "is 0", Fix: "write 1", Rule: "steps_needed"}
	for _, each := range []struct {
		err  *Error
		text string
	}{
		{&Error{Code: codes.NotFound, Message: "no job 'x'", Reason: "JOB_NOT_FOUND"}, "no job 'x' [JOB_NOT_FOUND]"},
		{newError(codes.Unavailable, "connection refused"), "connection refused [UNAVAILABLE]"},
		{&Error{Code: codes.InvalidArgument, Message: "1 error", Reason: "INVALID_SPEC", Violations: []*api.Violation{rule}},
			"1 error [INVALID_SPEC]\ntrain.steps: is 0; write 1 [steps_needed]"},
		{&Error{Code: codes.InvalidArgument, Message: "after: is negative", Reason: "INVALID_REQUEST",
			Violations: []*api.Violation{{Field: "after", Reason: "is negative"}}},
			"after: is negative [INVALID_REQUEST]\nafter: is negative"},
	} {
		if got := each.err.Error(); got != each.text {
			t.Errorf("%q, want %q", got, each.text)
		}
	}
}
