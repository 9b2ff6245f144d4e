#include "coordinator/agents/timeline_board.h"

#include <gtest/gtest.h>

#include <functional>

namespace fsdpd {
namespace {

// Job "j" runs its second attempt on nodes "a" and "b"; so does "k".
struct Case {
  explicit Case(int64_t max_bytes = kMaxTimelinesBytes) : timelines(&jobs, max_bytes) {
    for (const char* id : {"j", "k"}) jobs.Publish(JobOf(id, v1::JOB_STATE_RUNNING));
  }
  static v1::Job JobOf(const std::string& id, v1::JobState state) {
    v1::Job job;
    job.set_id(id);
    job.set_state(state);
    job.set_attempt(2);
    for (const char* node : {"a", "b"}) {
      v1::Job::Placement* const part = job.add_placements();
      part->set_node(node);
      part->set_first_rank(job.placements_size() - 1);
      part->set_ranks(1);
    }
    return job;
  }
  void Tell(const std::string& id, int attempt, int64_t step, size_t name_bytes = 1, int rank = 0) {
    v1::RankUpdate update;
    update.set_job_id(id);
    update.set_attempt(attempt);
    update.set_rank(rank);
    update.mutable_timeline()->set_step(step);
    update.mutable_timeline()->add_runs()->set_instruction(std::string(name_bytes, 'x'));
    timelines.Take(update);
  }
  int64_t StepOf(const std::string& id) const {
    const auto found = timelines.Find(id);
    return found.has_value() ? found->timeline().step() : 0;
  }

  JobBoard jobs;
  TimelineBoard timelines;
};

TEST(TimelineBoard, RetainsTheNewestOfAJob) {
  Case board;
  EXPECT_FALSE(board.timelines.Find("j").has_value());
  board.Tell("j", 2, 7);
  board.Tell("j", 2, 9);
  const auto found = board.timelines.Find("j");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->timeline().step(), 9);
  EXPECT_EQ(found->attempt(), 2);
  EXPECT_EQ(board.StepOf("k"), 0);
}

TEST(TimelineBoard, AcceptsOnlyRankZeroOfTheRunningAttempt) {
  Case board;
  board.Tell("j", 2, 7, 1, /*rank=*/1);
  board.Tell("j", 1, 7);
  board.Tell("unknown", 2, 7);
  EXPECT_EQ(board.StepOf("j"), 0);
  EXPECT_EQ(board.StepOf("unknown"), 0);
}

TEST(TimelineBoard, RetainsTheLastOfAnEndedJob) {
  Case board;
  board.Tell("j", 2, 7);
  board.jobs.Publish(Case::JobOf("j", v1::JOB_STATE_SUCCEEDED));
  EXPECT_EQ(board.StepOf("j"), 7);
  board.Tell("j", 2, 8);
  EXPECT_EQ(board.StepOf("j"), 7) << "an ended job reports no steps";
}

TEST(TimelineBoard, DropsTheLeastRecentlyUpdated) {
  Case board(/*max_bytes=*/2500);
  board.Tell("j", 2, 1, 1000);
  board.Tell("k", 2, 1, 1000);
  board.Tell("j", 2, 2, 1000);
  EXPECT_EQ(board.StepOf("j"), 2);
  EXPECT_EQ(board.StepOf("k"), 1) << "a newer one replaces that of its job";
  board.jobs.Publish(Case::JobOf("l", v1::JOB_STATE_RUNNING));
  board.Tell("l", 2, 5, 1000);
  EXPECT_EQ(board.StepOf("k"), 0);
  EXPECT_EQ(board.StepOf("j"), 2);
  EXPECT_EQ(board.StepOf("l"), 5);
}

TEST(TimelineBoard, RejectsLargerThanAnyRankSends) {
  Case board;
  board.Tell("j", 2, 1, kMaxTimelineBytes);
  EXPECT_EQ(board.StepOf("j"), 0);
}

// Half a million empty entries fit in a megabyte, and each reader parsed them.
TEST(TimelineBoard, RejectsMoreEntriesThanAnyRankSends) {
  Case board;
  const auto take = [&](const std::function<void(v1::StepTimeline*)>& add, int count) {
    v1::RankUpdate update;
    update.set_job_id("j");
    update.set_attempt(2);
    update.mutable_timeline()->set_step(count);
    for (int i = 0; i < count; ++i) add(update.mutable_timeline());
    board.timelines.Take(update);
    return board.StepOf("j") == count;
  };
  const auto run = [](v1::StepTimeline* timeline) { timeline->add_runs(); };
  const auto sample = [](v1::StepTimeline* timeline) { timeline->add_memory(); };
  const auto component = [](v1::StepTimeline* timeline) { timeline->add_components(); };
  const auto bytes = [](v1::StepTimeline* timeline) {
    (timeline->memory().empty() ? timeline->add_memory() : timeline->mutable_memory(0))->add_bytes(1);
  };
  EXPECT_TRUE(take(run, 4096) && take(sample, 1024) && take(component, 10) && take(bytes, 10));
  EXPECT_FALSE(take(run, 10'000));
  EXPECT_FALSE(take(sample, 10'000));
  EXPECT_FALSE(take(component, 10'000));
  EXPECT_FALSE(take(bytes, 10'000));
}

}  // namespace
}  // namespace fsdpd
