package fsdpd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"fsdpd/clients/go/api"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is a failed call. Its status code determines how to handle it: InvalidArgument (fix the request), NotFound,
// AlreadyExists (the request id has another spec), FailedPrecondition (the state does not allow the call), Aborted (the
// job has changed), PermissionDenied and Unauthenticated, ResourceExhausted and Unavailable (retry later),
// DeadlineExceeded (the call may or may not have taken effect).
type Error struct {
	Code           codes.Code
	Message        string
	Reason         string            // The error id, which reason.proto registers; the name of the code if no coordinator answered.
	Violations     []*api.Violation  // Violations of fields, if the error is about fields.
	MoreViolations int64             // Number of violations that did not fit; Validate returns all.
	Metadata       map[string]string // Metadata of the reason.
	RetryAfter     time.Duration     // 0: not set by the coordinator.
}

func (e *Error) Error() string {
	lines := []string{fmt.Sprintf("%s [%s]", e.Message, e.Reason)}
	for _, fault := range e.Violations {
		lines = append(lines, textOf(fault))
	}
	return strings.Join(lines, "\n")
}

// textOf returns "field: reason; fix [rule]". An invalid field of a request has no fix and no rule.
func textOf(fault *api.Violation) string {
	text := fmt.Sprintf("%s: %s", fault.GetField(), fault.GetReason())
	if fault.GetFix() != "" {
		text += "; " + fault.GetFix()
	}
	if fault.GetRule() != "" {
		text += " [" + fault.GetRule() + "]"
	}
	return text
}

// GRPCStatus makes status.Code(err) return the code.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// Is makes errors.Is match the errors of an ended context.
func (e *Error) Is(target error) bool {
	return target == context.Canceled && e.Code == codes.Canceled ||
		target == context.DeadlineExceeded && e.Code == codes.DeadlineExceeded
}

// ReasonOf returns the reason of an *Error, and "" for any other error.
func ReasonOf(err error) string {
	var own *Error
	if errors.As(err, &own) {
		return own.Reason
	}
	return ""
}

// newError returns an error without details; its reason is the name of the code.
func newError(kind codes.Code, message string) *Error {
	return &Error{Code: kind, Message: message, Reason: code.Code(kind).String()}
}

func fromRPC(err error) *Error {
	rpc := status.Convert(err)
	own := newError(rpc.Code(), rpc.Message())
	var fields []*api.Violation
	for _, detail := range rpc.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			own.Reason, own.Metadata = detail.GetReason(), detail.GetMetadata()
		case *errdetails.RetryInfo:
			own.RetryAfter = detail.GetRetryDelay().AsDuration()
		case *api.SpecViolations:
			own.Violations, own.MoreViolations = detail.GetViolations(), detail.GetMore()
		case *errdetails.BadRequest:
			for _, each := range detail.GetFieldViolations() {
				fields = append(fields, &api.Violation{Severity: api.Severity_SEVERITY_ERROR, Field: each.GetField(),
					Reason: each.GetDescription()})
			}
		}
	}
	if len(own.Violations) == 0 {
		own.Violations = fields
	}
	return own
}
