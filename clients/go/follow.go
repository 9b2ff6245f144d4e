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
	Job *api.Job // The job as it is now; nil where a step was made.
	// What has happened since the last change that was told (at first: ever), as far as the coordinator keeps events.
	Events []*api.Job_Event
	Step   *api.StepReport // Rank 0's; those of an attempt come in order.
	// How many of the attempt's steps before it have no report here; of a job that has ended: after the last report.
	Missed int64
}

// Line is one of a rank's log.
type Line = api.TailLogsResponse

// IsEnded says whether a job has succeeded, failed or been cancelled.
func IsEnded(job *api.Job) bool {
	switch job.GetState() {
	case api.JobState_JOB_STATE_SUCCEEDED, api.JobState_JOB_STATE_FAILED, api.JobState_JOB_STATE_CANCELLED:
		return true
	}
	return false
}

// What a watch has told, so that it goes on there and nothing comes twice.
type watchCursor struct {
	job  *api.Job
	step int64 // The attempt's newest, 0 before the first.
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
	if c.step > 0 { // Of an attempt's first report nobody knows here after which step it began.
		update.Missed = report.GetStep() - c.step - 1
	}
	c.step = report.GetStep()
	return update, true
}

// Likewise, of events: the request is for those that come after.
type eventCursor struct{ request *api.WatchEventsRequest }

func (c *eventCursor) take(response *api.WatchEventsResponse) (*api.Event, bool) {
	event := response.GetEvent()
	isNew := event.GetSequence() > c.request.GetAfter()
	c.request.After = max(c.request.GetAfter(), response.GetCursor())
	return event, isNew
}

// The coordinator keeps the newest so many: where the last one known is not among them, all are new.
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

// Of a word of the agent's on lines that it has dropped how many these are, which count as they did when they were there; 0
// of any other.
func linesGone(notice string) int {
	if found := dropped.FindStringSubmatch(notice); found != nil {
		lines, _ := strconv.Atoi(found[1])
		return lines
	}
	return 0
}

// What a log reader has shown. Lines of a rank come in order: a log is read again from its start, and what was shown is
// passed over; or, after a tail, from its last line.
type logCursor struct {
	request *api.TailLogsRequest
	opened  bool
	shown   map[source]int
	seen    map[source]int // On this connection.
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
	if line.GetNotice() { // Each connection is told again.
		if gone := linesGone(line.GetLine()); gone > 0 && c.request.GetTailLines() == 0 {
			c.seen[from] += gone
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
		return false // Nothing was written since.
	}
	c.shown[from]++
	c.last[from] = line.GetLine()
	return true
}

// Since when nothing is heard, and for how long that may go on.
type outage struct {
	limit  time.Duration
	since  time.Time
	moves  int
	places *places
}

func (o *outage) over() { o.since, o.moves = time.Time{}, 0 }

// Waits for another try, where it is of another coordinator for none; false when there is to be none.
func (o *outage) goesOn(ctx context.Context, asked *place, lost *Error) bool {
	if (lost.Code != codes.Unavailable && lost.Code != codes.Canceled) || ctx.Err() != nil || o.places.isClosed() {
		return false
	}
	o.moves++
	atOnce := o.places.move(asked, lost) && o.moves <= movesAtOnce
	if atOnce && standsBy(lost) { // It has lost nothing: however short an outage may be.
		return true
	}
	if o.since.IsZero() {
		o.since = time.Now()
	}
	if time.Since(o.since) >= o.limit {
		return false
	}
	if atOnce {
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

// Reads a stream to its end, nil, or an error of the coordinator's. False: the reader wants no more.
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

// Tells what is new of a stream, which is made anew, as `open` asks for it then, until `ended`.
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
			outage.over()
			update, isNew := take(response)
			return !isNew || yield(update, nil)
		})
		if !wanted || ended() {
			return
		}
		if lost == nil { // A coordinator that stops may close the stream in an orderly way.
			lost = &Error{Code: codes.Unavailable, Message: "the coordinator closed the stream"}
		}
		if !outage.goesOn(ctx, place, lost) {
			var none U
			yield(none, lost)
			return
		}
	}
}

// Watch has the job now, then each change of it and each step report, until it has ended. A lost connection is made
// anew; an error, the last that comes, is Unavailable only when it stayed lost. Ends with ctx too.
func (c *Client) Watch(ctx context.Context, id string) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		cursor := watchCursor{}
		open := func(ctx context.Context, place *place) (stream[api.WatchJobResponse], error) {
			return place.stub.WatchJob(ctx, &api.WatchJobRequest{Id: id, AfterRevision: cursor.job.GetRevision()})
		}
		follow(ctx, c, open, cursor.take, func() bool { return IsEnded(cursor.job) }, yield)
	}
}

// WatchEvents has each event after the cursor that the request names (Event.sequence), once and in order, and then each
// as it comes, until ctx ends. A lost connection is made anew as Watch's; an error with the reason EVENTS_GONE says that
// some after the cursor are kept no more.
func (c *Client) WatchEvents(ctx context.Context, request *api.WatchEventsRequest) iter.Seq2[*api.Event, error] {
	return func(yield func(*api.Event, error) bool) {
		cursor := eventCursor{proto.Clone(request).(*api.WatchEventsRequest)}
		open := func(ctx context.Context, place *place) (stream[api.WatchEventsResponse], error) {
			return place.stub.WatchEvents(ctx, cursor.request)
		}
		follow(ctx, c, open, cursor.take, func() bool { return false }, yield)
	}
}

// Wait has the job once it is as `until` says (nil: never), or has ended.
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

// Logs has lines of a job's ranks, as the request says; with Follow until the job has ended, also over lost
// connections. Without, Unavailable may mean that a node is not ready. With Evidence, Unimplemented where the coordinator
// is of an older release, which sends logs. An error is the last that comes.
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
					yield(nil, &Error{Code: codes.Unimplemented, Message: "this coordinator is of an older release, which sends " +
						"no evidence: it is in files next to the ranks' logs on their nodes, rank-N.hang.txt"})
					return false
				}
				if !cursor.take(line) {
					return true
				}
				outage.over()
				return yield(line, nil)
			})
			if !wanted || lost == nil {
				return
			}
			if !outage.goesOn(ctx, place, lost) {
				yield(nil, lost)
				return
			}
		}
	}
}

// Trace has a job's ranks trace its next steps, as the request says: first the order, of each rank and step where its file
// is or why it is not, and then the lines of the files, which are JSON for Perfetto: those of one rank and step in order,
// between those of others. With no steps only lines come, of what an attempt has written. Asked once, as another call would
// trace other steps. An error is the last that comes.
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
			if heard || !outage.goesOn(ctx, place, lost) {
				yield(nil, lost)
				return
			}
		}
	}
}
