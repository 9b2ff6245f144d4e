package fsdpd

import (
	"fmt"
	"slices"
	"testing"

	"fsdpd/clients/go/api"
)

func job(revision int64, attempt int32, events ...string) *api.WatchJobResponse {
	made := &api.Job{Revision: revision, Attempt: attempt}
	for index, message := range events {
		made.Events = append(made.Events, &api.Job_Event{UnixNanos: int64(index), Message: message})
	}
	return &api.WatchJobResponse{Update: &api.WatchJobResponse_Job{Job: made}}
}

func step(number int64) *api.WatchJobResponse {
	return &api.WatchJobResponse{Update: &api.WatchJobResponse_Step{Step: &api.StepReport{Step: number}}}
}

func TestWatchReportsChangesAndStepsOnce(t *testing.T) {
	type received struct {
		events       int
		step, missed int64
	}
	var found []received
	cursor := watchCursor{}
	for _, each := range []*api.WatchJobResponse{
		job(1, 0, "a"), job(2, 1, "a", "b"), step(1), step(2),
		// A new connection repeats old updates and adds new ones.
		job(2, 1, "a", "b"), step(2), step(6), job(5, 1, "a", "b", "c", "d"),
		// A new attempt starts from an earlier step.
		job(6, 2, "a", "b", "c", "d", "e"), step(3),
	} {
		if update, isNew := cursor.take(each); isNew {
			found = append(found, received{len(update.Events), update.Step.GetStep(), update.Missed})
		}
	}
	want := []received{{1, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 2, 0}, {0, 6, 3}, {2, 0, 0}, {1, 0, 0}, {0, 3, 0}}
	if !slices.Equal(found, want) {
		t.Errorf("got %v, want %v", found, want)
	}
}

func TestWatchCountsMissedStepsAtEnd(t *testing.T) {
	cursor := watchCursor{}
	ended := job(9, 1, "a", "b")
	ended.GetJob().State = api.JobState_JOB_STATE_SUCCEEDED
	ended.GetJob().LastStep = &api.StepReport{Step: 300}
	cursor.take(job(1, 1, "a"))
	cursor.take(step(19))
	if update, _ := cursor.take(ended); update.Missed != 281 {
		t.Errorf("missed %d", update.Missed)
	}
	late := watchCursor{} // A watch that starts after the end has missed nothing.
	if update, _ := late.take(ended); update.Missed != 0 {
		t.Errorf("missed %d", update.Missed)
	}
}

func TestWatchReportsAllEventsIfLastOneIsGone(t *testing.T) {
	cursor := watchCursor{}
	cursor.take(job(1, 1, "a"))
	if update, _ := cursor.take(job(9, 1, "x", "y")); len(update.Events) != 2 {
		t.Errorf("got %v", update.Events)
	}
}

func line(rank int32, text string) *Line { return &Line{Rank: rank, Attempt: 1, Line: text} }

func shown(cursor *logCursor, lines ...*Line) []string {
	cursor.next()
	var taken []string
	for _, each := range lines {
		if cursor.take(each) {
			taken = append(taken, each.GetLine())
		}
	}
	return taken
}

func TestLogResumesAtNextLine(t *testing.T) {
	cursor := newLogCursor(&api.TailLogsRequest{Follow: true})
	notice := &Line{Attempt: 1, Line: "cut", Notice: true}
	if got := shown(cursor, notice, line(0, "a"), line(1, "a"), line(0, "b")); len(got) != 4 {
		t.Errorf("at first %v", got)
	}
	again := shown(cursor, notice, line(1, "a"), line(0, "a"), line(0, "b"), line(0, "b"), line(1, "c"))
	if !slices.Equal(again, []string{"b", "c"}) {
		t.Errorf("then %v", again)
	}
}

func TestDroppedLinesDoNotHideNewLines(t *testing.T) {
	cursor := newLogCursor(&api.TailLogsRequest{Follow: true})
	gone := func(lines int) *Line {
		text := fmt.Sprintf("[fsdpd-agent: %d lines (100 bytes) are gone here: of a rank's log the newest 1.00 MiB are kept]", lines)
		return &Line{Attempt: 1, Line: text, Notice: true}
	}
	shown(cursor, line(0, "0"), line(0, "1"), line(0, "2"))
	if got := shown(cursor, gone(2), line(0, "2"), line(0, "3")); !slices.Equal(got, []string{"3"}) {
		t.Errorf("then %v", got)
	}
	if got := shown(cursor, gone(5), line(0, "5")); !slices.Equal(got, []string{gone(5).GetLine(), "5"}) {
		t.Errorf("at last %v", got)
	}
}

func TestTailResumesAtLastLine(t *testing.T) {
	cursor := newLogCursor(&api.TailLogsRequest{Follow: true, TailLines: 3})
	shown(cursor, line(0, "a"), line(0, "b"))
	if got := shown(cursor, line(0, "b"), line(0, "c")); !slices.Equal(got, []string{"c"}) {
		t.Errorf("then %v", got)
	}
	if cursor.next().GetTailLines() != 1 {
		t.Error("asks for more than its last line")
	}
}
