package fsdpd

import (
	"context"
	"errors"
	"io"
	"iter"
	"regexp"
	"strconv"
	"time"

	"fsdpd/clients/go/api"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// Update is a change of a job, or a step that it made.
type Update struct {
	Job *api.Job // The current job; nil for a step report.
	// Events since the last update with a job (in the first: since submission) that the coordinator retains.
	Events []*api.Job_Event
	Step   *api.StepReport // Rank 0's report. Reports of an attempt arrive in order.
	// Number of steps between the last report and this one; for an ended job: after the last report.
	Missed int64
}

// Line is a line of a rank's log.
type Line = api.TailLogsResponse

// IsEnded reports whether a job has succeeded, failed or been cancelled.
func IsEnded(job *api.Job) bool {
	switch job.GetState() {
	case api.JobState_JOB_STATE_SUCCEEDED, api.JobState_JOB_STATE_FAILED, api.JobState_JOB_STATE_CANCELLED:
		return true
	}
	return false
}

// Position of a watch, so that it resumes after a lost connection without duplicates.
type watchCursor struct {
	job  *api.Job
	step int64 // The newest step of the attempt; 0 before its first report.
}

func (c *watchCursor) take(response *api.WatchJobResponse) (Update, bool) {
	if job := response.GetJob(); job != nil {
		before := c.job
		if before != nil && job.GetRevision() == before.GetRevision() {
			return Update{}, false
		}
		if job.GetAttempt() != before.GetAttempt() {
			c.step = 0
		}
		c.job = job
		update := Update{Job: job, Events: eventsAfter(before, job)}
		if newest := job.GetLastStep().GetStep(); IsEnded(job) && c.step > 0 && newest > c.step {
			update.Missed = newest - c.step
		}
		return update, true
	}
	report := response.GetStep()
	if report.GetStep() <= c.step {
		return Update{}, false
	}
	update := Update{Step: report}
	if c.step > 0 { // The first report of an attempt does not reveal the step from which the attempt started.
		update.Missed = report.GetStep() - c.step - 1
	}
	c.step = report.GetStep()
	return update, true
}

// Position in the log of events: the request selects events after it.
type eventCursor struct{ request *api.WatchEventsRequest }

func (c *eventCursor) take(response *api.WatchEventsResponse) (*api.Event, bool) {
	event := response.GetEvent()
	isNew := event.GetSequence() > c.request.GetAfter()
	c.request.After = max(c.request.GetAfter(), response.GetCursor())
	return event, isNew
}

// eventsAfter returns the events of `job` after those of `before`. The coordinator retains a limited number of them: if
// the last known event is no longer among them, all are new.
func eventsAfter(before, job *api.Job) []*api.Job_Event {
	events := job.GetEvents()
	if known := before.GetEvents(); len(known) > 0 {
		for index := len(events) - 1; index >= 0; index-- {
			if proto.Equal(events[index], known[len(known)-1]) {
				return events[index+1:]
			}
		}
	}
	return events
}

var dropped = regexp.MustCompile(`^\[fsdpd-agent: (\d+) lines \(`)

// droppedLines returns the number of dropped lines in an agent's notice, or 0 for another notice. Dropped lines count in
// positions as they did before they were dropped.
func droppedLines(notice string) int {
	if found := dropped.FindStringSubmatch(notice); found != nil {
		lines, _ := strconv.Atoi(found[1])
		return lines
	}
	return 0
}

// Position in the logs of all ranks; lines of one rank arrive in order. After a lost connection a log is read again from
// its start, and lines that were already returned are skipped. With a tail it is read from its last line.
type logCursor struct {
	request *api.TailLogsRequest
	opened  bool
	shown   map[source]int
	seen    map[source]int // Lines received on this connection.
	last    map[source]string
	notices map[source]string
}

type source struct{ attempt, rank int32 }

func newLogCursor(request *api.TailLogsRequest) *logCursor {
	own := proto.Clone(request).(*api.TailLogsRequest)
	return &logCursor{own, false, map[source]int{}, nil, map[source]string{}, map[source]string{}}
}

func (c *logCursor) next() *api.TailLogsRequest {
	if c.opened && c.request.GetTailLines() > 0 {
		c.request.TailLines = 1
	}
	c.opened, c.seen = true, map[source]int{}
	return c.request
}

func (c *logCursor) take(line *Line) bool {
	from := source{line.GetAttempt(), line.GetRank()}
	if line.GetNotice() { // The agent repeats its notices on each connection.
		if lines := droppedLines(line.GetLine()); lines > 0 && c.request.GetTailLines() == 0 {
			c.seen[from] += lines
			if c.seen[from] <= c.shown[from] {
				return false
			}
			c.shown[from] = c.seen[from]
		}
		known, said := c.notices[from]
		c.notices[from] = line.GetLine()
		return !said || known != line.GetLine()
	}
	c.seen[from]++
	if c.request.GetTailLines() == 0 && c.seen[from] <= c.shown[from] {
		return false
	}
	last, shown := c.last[from]
	if c.request.GetTailLines() > 0 && c.seen[from] == 1 && shown && last == line.GetLine() {
		return false // Nothing was written during the outage.
	}
	c.shown[from]++
	c.last[from] = line.GetLine()
	return true
}

// Duration of the current outage of a stream, with its limit. A limit of 0 returns the first error.
type outage struct {
	limit  time.Duration
	since  time.Time
	moves  int
	places *places
}

func (o *outage) reset() { o.since, o.moves = time.Time{}, 0 }

// waitForRetry waits before the next try, or not if it uses another coordinator. It returns false after the limit.
func (o *outage) waitForRetry(ctx context.Context, current *place, lost *Error) bool {
	if (lost.Code != codes.Unavailable && lost.Code != codes.Canceled) || ctx.Err() != nil || o.places.isClosed() {
		return false
	}
	o.moves++
	immediate := o.places.move(current, lost) && o.moves <= maxImmediateMoves
	if immediate && isStandby(lost) { // A move away from a standby is not an outage, even with a limit of 0.
		return true
	}
	if o.since.IsZero() {
		o.since = time.Now()
	}
	if time.Since(o.since) >= o.limit {
		return false
	}
	if immediate {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Duration(calls.FollowPauseMs) * time.Millisecond):
		return true
	}
}

type stream[R any] interface{ Recv() (*R, error) }

// read reads a stream to its end. It returns nil at the end of the stream, or the coordinator's error. False: the reader
// stopped.
func read[R any](open func() (stream[R], error), take func(*R) bool) (bool, *Error) {
	opened, err := open()
	for err == nil {
		var message *R
		if message, err = opened.Recv(); err == nil && !take(message) {
			return false, nil
		}
	}
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return true, fromRPC(err)
}

// follow yields the new updates of a stream. It opens the stream again with `open` after a lost connection, until `ended`.
func follow[R, U any](
	ctx context.Context, c *Client, open func(context.Context, *place) (stream[R], error), take func(*R) (U, bool),
	ended func() bool, yield func(U, error) bool,
) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outage := outage{limit: c.reconnectFor, places: c.places}
	for {
		place := c.places.now()
		opened := func() (stream[R], error) { return open(ctx, place) }
		wanted, lost := read(opened, func(response *R) bool {
			outage.reset()
			update, isNew := take(response)
			return !isNew || yield(update, nil)
		})
		if !wanted || ended() {
			return
		}
		if lost == nil { // A coordinator that stops may close the stream without an error.
			lost = newError(codes.Unavailable, "the coordinator closed the stream")
		}
		if !outage.waitForRetry(ctx, place, lost) {
			var none U
			yield(none, lost)
			return
		}
	}
}

// Watch yields the current job, then each change and step report until the job or ctx has ended. It reconnects after a
// lost connection. An error is the last element: Unavailable if the connection stays lost.
func (c *Client) Watch(ctx context.Context, id string) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		cursor := watchCursor{}
		open := func(ctx context.Context, place *place) (stream[api.WatchJobResponse], error) {
			return place.stub.WatchJob(ctx, &api.WatchJobRequest{Id: id, AfterRevision: cursor.job.GetRevision()})
		}
		follow(ctx, c, open, cursor.take, func() bool { return IsEnded(cursor.job) }, yield)
	}
}

// WatchEvents yields each event after the request's cursor (Event.sequence) once and in order, and then new events until
// ctx ends. It reconnects like Watch. An error with the reason EVENTS_EXPIRED means that events after the cursor are no
// longer retained.
func (c *Client) WatchEvents(ctx context.Context, request *api.WatchEventsRequest) iter.Seq2[*api.Event, error] {
	return func(yield func(*api.Event, error) bool) {
		cursor := eventCursor{proto.Clone(request).(*api.WatchEventsRequest)}
		open := func(ctx context.Context, place *place) (stream[api.WatchEventsResponse], error) {
			return place.stub.WatchEvents(ctx, cursor.request)
		}
		follow(ctx, c, open, cursor.take, func() bool { return false }, yield)
	}
}

// Wait returns the job when `until` is true for it (nil: never), or when it has ended.
func (c *Client) Wait(ctx context.Context, id string, until func(*api.Job) bool) (*api.Job, error) {
	for update, err := range c.Watch(ctx, id) {
		if err != nil {
			return nil, err
		}
		if update.Job != nil && (IsEnded(update.Job) || until != nil && until(update.Job)) {
			return update.Job, nil
		}
	}
	return c.Get(ctx, id)
}

// Logs yields log lines of a job's ranks. With Follow, until the job has ended, with reconnects. Without Follow,
// Unavailable may mean that a node is not ready. With Evidence, it yields records of hung ranks; Unimplemented means that
// the coordinator is too old. An error is the last element.
func (c *Client) Logs(ctx context.Context, request *api.TailLogsRequest) iter.Seq2[*Line, error] {
	return func(yield func(*Line, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		cursor, outage := newLogCursor(request), outage{places: c.places}
		if request.GetFollow() {
			outage.limit = c.reconnectFor
		}
		for {
			place := c.places.now()
			open := func() (stream[Line], error) { return place.stub.TailLogs(ctx, cursor.next()) }
			wanted, lost := read(open, func(line *Line) bool {
				if request.GetEvidence() && !line.GetEvidence() {
					yield(nil, newError(codes.Unimplemented, "the coordinator is of an older release, which sends "+
						"no evidence; read the files rank-N.hang.txt next to the ranks' logs on their nodes"))
					return false
				}
				if !cursor.take(line) {
					return true
				}
				outage.reset()
				return yield(line, nil)
			})
			if !wanted || lost == nil {
				return
			}
			if !outage.waitForRetry(ctx, place, lost) {
				yield(nil, lost)
				return
			}
		}
	}
}

// Trace traces the next steps of a running job. It yields the order, then for each rank and step the path of its file or an
// error, then the lines of the files, JSON for Perfetto. Lines of one rank and step are in order, interleaved with others.
// With no steps it yields only the lines of existing traces of an attempt. The trace is requested once, because a retry
// would trace other steps. An error is the last element.
func (c *Client) Trace(ctx context.Context, request *api.TraceJobRequest) iter.Seq2[*api.TraceJobResponse, error] {
	return func(yield func(*api.TraceJobResponse, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		outage, heard := outage{places: c.places}, false
		for {
			place := c.places.now()
			open := func() (stream[api.TraceJobResponse], error) { return place.stub.TraceJob(ctx, request) }
			wanted, lost := read(open, func(update *api.TraceJobResponse) bool {
				heard = true
				return yield(update, nil)
			})
			if !wanted || lost == nil {
				return
			}
			if heard || !outage.waitForRetry(ctx, place, lost) {
				yield(nil, lost)
				return
			}
		}
	}
}
