package fsdpd

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"fsdpd/clients/go/api"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

const (
	maxPlaces         = 16
	maxImmediateMoves = 4 // Moves to another coordinator without a pause.
)

type place struct {
	address    string
	connection *grpc.ClientConn
	stub       api.CoordinatorClient
}

// places selects the leader among several coordinators, as in client/connect/coordinator_client.h. A standby rejects a call that
// only the leader may serve, without any effect, and returns the leader's address. The client then calls the leader, even
// if it is not in the list of addresses. Unreachable coordinators are skipped.
type places struct {
	dial    []grpc.DialOption
	mutex   sync.Mutex
	known   []*place
	current int
	closed  bool
}

func newPlaces(addresses []string, dial []grpc.DialOption) (*places, error) {
	made := &places{dial: dial}
	for _, address := range addresses {
		if err := made.add(address); err != nil {
			made.close()
			return nil, err
		}
	}
	return made, nil
}

func (p *places) add(address string) error {
	connection, err := grpc.NewClient(address, p.dial...) // Connects at its first use.
	if err == nil {
		p.known = append(p.known, &place{address, connection, api.NewCoordinatorClient(connection)})
	}
	return err
}

func (p *places) now() *place {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.known[p.current]
}

func (p *places) isClosed() bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.closed
}

func (p *places) close() error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.closed = true
	var first error
	for _, each := range p.known {
		if err := each.connection.Close(); first == nil {
			first = err
		}
	}
	return first
}

// isStandby reports whether a standby rejected the call, which then had no effect.
func isStandby(err *Error) bool { return err.Reason == "NOT_LEADER" }

// move handles an error from `current`. It reports whether to call another coordinator immediately.
func (p *places) move(current *place, err *Error) bool {
	if err.Code != codes.Unavailable && err.Code != codes.DeadlineExceeded {
		return false
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.closed {
		return false
	}
	if p.known[p.current] != current {
		return true // Another goroutine has already moved.
	}
	leader := err.Metadata["leader"]
	if !isStandby(err) || leader == "" {
		p.current = (p.current + 1) % len(p.known)
		return !isStandby(err) && len(p.known) > 1
	}
	isLeader := func(each *place) bool { return each.address == leader }
	if !slices.ContainsFunc(p.known, isLeader) && (len(p.known) >= maxPlaces || p.add(leader) != nil) {
		p.current = 0
		return false
	}
	p.current = slices.IndexFunc(p.known, isLeader)
	return p.known[p.current] != current
}

type retryPolicy struct {
	InitialBackoff    string  `json:"initialBackoff"`
	MaxBackoff        string  `json:"maxBackoff"`
	BackoffMultiplier float64 `json:"backoffMultiplier"`
}

func seconds(text string) time.Duration {
	number, err := strconv.ParseFloat(strings.TrimSuffix(text, "s"), 64)
	if err != nil {
		panic("calls.json: invalid duration " + text)
	}
	return time.Duration(number * float64(time.Second))
}

// Deadline and retries of one call. If its answer is lost, the call may have taken effect, so only methods listed in
// calls.json are retried. A call that a standby rejected had no effect, and is always retried.
type tries struct {
	repeated bool
	until    time.Time
	pause    time.Duration
	moves    int
}

func newTries(method string, request any) *tries {
	conditional, is := request.(interface{ GetEtag() string })
	repeated := calls.repeated[method] && !(is && conditional.GetEtag() != "")
	return &tries{repeated, time.Now().Add(calls.deadline(method)), seconds(calls.retry.InitialBackoff), 0}
}

// again waits before the next try. It returns false if the call must not be tried again.
func (t *tries) again(ctx context.Context, err *Error, hasOther bool) bool {
	if err.Code != codes.Unavailable || !t.repeated && !isStandby(err) {
		return false
	}
	t.moves++
	if hasOther && t.moves <= maxImmediateMoves {
		return ctx.Err() == nil
	}
	pause := t.pause
	if err.RetryAfter > 0 {
		pause = err.RetryAfter
	}
	end := t.until
	if own, has := ctx.Deadline(); has && own.Before(end) {
		end = own
	}
	if time.Now().Add(pause).After(end) {
		return false
	}
	t.pause = min(time.Duration(float64(t.pause)*calls.retry.BackoffMultiplier), seconds(calls.retry.MaxBackoff))
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}
