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
	mostPlaces  = 16
	movesAtOnce = 4 // From one coordinator to another without a pause.
)

type place struct {
	address    string
	connection *grpc.ClientConn
	stub       api.CoordinatorClient
}

// Which of several coordinators is asked, as client/coordinator_client.h has it. One of them leads. What another one may
// not do itself it has not done, and it says who leads: that one is asked then, also where it is not among the
// addresses. Who is gone is passed over.
type places struct {
	dial   []grpc.DialOption
	mutex  sync.Mutex
	known  []*place
	asked  int
	closed bool
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
	connection, err := grpc.NewClient(address, p.dial...) // It connects when it is first used.
	if err == nil {
		p.known = append(p.known, &place{address, connection, api.NewCoordinatorClient(connection)})
	}
	return err
}

func (p *places) now() *place {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.known[p.asked]
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

// Heard by a coordinator that does not lead, and not done.
func standsBy(err *Error) bool { return err.Reason == "NOT_LEADER" }

// After an error of `asked`: whether another one is to be asked, at once.
func (p *places) move(asked *place, err *Error) bool {
	if err.Code != codes.Unavailable && err.Code != codes.DeadlineExceeded {
		return false
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.closed {
		return false
	}
	if p.known[p.asked] != asked {
		return true // Another goroutine was faster.
	}
	leader := err.Metadata["leader"]
	if !standsBy(err) || leader == "" {
		p.asked = (p.asked + 1) % len(p.known)
		return !standsBy(err) && len(p.known) > 1
	}
	isLeader := func(each *place) bool { return each.address == leader }
	if !slices.ContainsFunc(p.known, isLeader) && (len(p.known) >= mostPlaces || p.add(leader) != nil) {
		p.asked = 0
		return false
	}
	p.asked = slices.IndexFunc(p.known, isLeader)
	return p.known[p.asked] != asked
}

type retryPolicy struct {
	InitialBackoff    string  `json:"initialBackoff"`
	MaxBackoff        string  `json:"maxBackoff"`
	BackoffMultiplier float64 `json:"backoffMultiplier"`
}

func seconds(text string) time.Duration {
	number, err := strconv.ParseFloat(strings.TrimSuffix(text, "s"), 64)
	if err != nil {
		panic("calls.json: " + text + " is no time")
	}
	return time.Duration(number * float64(time.Second))
}

// Of one call: for how long it is made again. One whose answer was lost may have been done, so calls.json says which are
// repeated; what a coordinator that stands by has refused was not.
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

// Waits for another try; false when there is to be none.
func (t *tries) again(ctx context.Context, err *Error, elsewhere bool) bool {
	if err.Code != codes.Unavailable || !t.repeated && !standsBy(err) {
		return false
	}
	t.moves++
	if elsewhere && t.moves <= movesAtOnce {
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
