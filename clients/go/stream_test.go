package fsdpd

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"fsdpd/clients/go/api"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A coordinator that closes each stream early.
type losing struct {
	api.UnimplementedCoordinatorServer
	after  []int64
	orders int
}

// Sends the newest event that the watcher has, the next two, and a cursor after them.
func (l *losing) WatchEvents(request *api.WatchEventsRequest, to api.Coordinator_WatchEventsServer) error {
	l.after = append(l.after, request.GetAfter())
	for sequence := max(request.GetAfter(), 1); sequence <= request.GetAfter()+2; sequence++ {
		to.Send(&api.WatchEventsResponse{Event: &api.Event{Sequence: sequence}, Cursor: sequence})
	}
	to.Send(&api.WatchEventsResponse{Cursor: request.GetAfter() + 3})
	return status.Error(codes.Unavailable, "as told")
}

func (l *losing) TraceJob(request *api.TraceJobRequest, to api.Coordinator_TraceJobServer) error {
	l.orders++
	to.Send(&api.TraceJobResponse{Update: &api.TraceJobResponse_Order_{Order: &api.TraceJobResponse_Order{FirstStep: 7}}})
	return status.Error(codes.Unavailable, "as told")
}

// Sends logs even if the request asks for evidence; with `known` it marks them as evidence.
type logging struct {
	api.UnimplementedCoordinatorServer
	known bool
}

func (l *logging) TailLogs(request *api.TailLogsRequest, to api.Coordinator_TailLogsServer) error {
	to.Send(&Line{Line: "one", Evidence: l.known})
	return to.Send(&Line{Line: "two", Evidence: l.known})
}

func clientOf(t *testing.T, coordinator api.CoordinatorServer) (context.Context, *Client) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	api.RegisterCoordinatorServer(server, coordinator)
	go server.Serve(listener)
	client, err := New(Options{Address: listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(func() { cancel(); client.Close(); server.Stop() })
	return ctx, client
}

func TestEventWatchResumesWithoutDuplicates(t *testing.T) {
	coordinator := &losing{}
	ctx, client := clientOf(t, coordinator)
	var received []int64
	for event, err := range client.WatchEvents(ctx, &api.WatchEventsRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		if received = append(received, event.GetSequence()); len(received) == 5 {
			break
		}
	}
	if !slices.Equal(received, []int64{1, 2, 4, 5, 7}) || !slices.Equal(coordinator.after, []int64{0, 3, 6}) {
		t.Errorf("got %v, request after %v", received, coordinator.after)
	}
}

func TestStartedTraceIsNotRetried(t *testing.T) {
	coordinator := &losing{}
	ctx, client := clientOf(t, coordinator)
	var first []int64
	var last error
	for update, err := range client.Trace(ctx, &api.TraceJobRequest{Id: "one", Steps: 1}) {
		if last = err; err == nil {
			first = append(first, update.GetOrder().GetFirstStep())
		}
	}
	if status.Code(last) != codes.Unavailable || !slices.Equal(first, []int64{7}) || coordinator.orders != 1 {
		t.Errorf("ended with %v after %v, and %d orders", last, first, coordinator.orders)
	}
}

func TestEvidenceRequiresNewCoordinator(t *testing.T) {
	for _, known := range []bool{true, false} {
		ctx, client := clientOf(t, &logging{known: known})
		var lines []string
		var last error
		for line, err := range client.Logs(ctx, &api.TailLogsRequest{Id: "one", Evidence: true}) {
			if last = err; err == nil {
				lines = append(lines, line.GetLine())
			}
		}
		if known && (last != nil || !slices.Equal(lines, []string{"one", "two"})) {
			t.Errorf("evidence ended with %v after %v", last, lines)
		}
		if !known && (status.Code(last) != codes.Unimplemented || len(lines) != 0) {
			t.Errorf("an older coordinator's logs ended with %v after %v", last, lines)
		}
	}
}

func TestRejectsPortOutOfRange(t *testing.T) {
	for _, address := range []string{"h:99999", "h:0", "h:x", "h:", "h"} {
		if client, err := New(Options{Address: address}); err == nil {
			client.Close()
			t.Errorf("%s was accepted", address)
		}
	}
}
