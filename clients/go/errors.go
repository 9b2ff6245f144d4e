package fsdpd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"fsdpd/clients/go/api"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is a call that failed. Its status code says how to go on: InvalidArgument (fix it), NotFound, AlreadyExists
// (the request id has another spec), FailedPrecondition (the job does not allow it now), Aborted (it is not as it was seen
// any more), PermissionDenied and Unauthenticated, ResourceExhausted and Unavailable (later), DeadlineExceeded (nobody
// knows whether it took effect).
type Error struct {
	Code       codes.Code
	Message    string
	Reason     string            // A name of reason.proto without REASON_; empty where no coordinator answered.
	Faults     []*api.Fault      // Fields that are wrong, where fields are.
	MoreFaults int64             // How many did not fit; Validate answers with all.
	Metadata   map[string]string // Of the reason.
	RetryAfter time.Duration     // 0: nobody said.
}

func (e *Error) Error() string {
	reason := e.Reason
	if reason == "" {
		reason = e.Code.String()
	}
	lines := []string{fmt.Sprintf("%s [%s]", e.Message, reason)}
	for _, fault := range e.Faults {
		lines = append(lines, fmt.Sprintf("%s: %s; %s [%s]", fault.GetField(), fault.GetReason(), fault.GetFix(),
			fault.GetRule()))
	}
	return strings.Join(lines, "\n")
}

// GRPCStatus has status.Code(err) see the code.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// Is has errors.Is see a context that ended.
func (e *Error) Is(target error) bool {
	return target == context.Canceled && e.Code == codes.Canceled ||
		target == context.DeadlineExceeded && e.Code == codes.DeadlineExceeded
}

// ReasonOf is the reason of an *Error, "" of any other.
func ReasonOf(err error) string {
	var own *Error
	if errors.As(err, &own) {
		return own.Reason
	}
	return ""
}

func fromRPC(err error) *Error {
	told := status.Convert(err)
	own := &Error{Code: told.Code(), Message: told.Message()}
	var fields []*api.Fault
	for _, detail := range told.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			own.Reason, own.Metadata = detail.GetReason(), detail.GetMetadata()
		case *errdetails.RetryInfo:
			own.RetryAfter = detail.GetRetryDelay().AsDuration()
		case *api.SpecFaults:
			own.Faults, own.MoreFaults = detail.GetFaults(), detail.GetMore()
		case *errdetails.BadRequest:
			for _, each := range detail.GetFieldViolations() {
				fields = append(fields, &api.Fault{Severity: api.Severity_SEVERITY_ERROR, Field: each.GetField(),
					Reason: each.GetDescription()})
			}
		}
	}
	if len(own.Faults) == 0 {
		own.Faults = fields
	}
	return own
}
