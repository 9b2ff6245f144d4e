#include "coordinator/job/recorded_reason.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace fsdpd {
namespace {

using Events = std::vector<std::pair<v1::JobState, const char*>>;

bool Heard(const Events& events, const std::string& reason) {
  v1::Job job;
  for (const auto& [state, message] : events) {
    v1::Job::Event* event = job.add_events();
    event->set_state(state);
    event->set_message(message);
  }
  return HasRecordedReason(job, reason, {v1::JOB_STATE_PAUSING, v1::JOB_STATE_PAUSED},
                           {"the ranks ", "stays paused"});
}

TEST(HeardReason, ComparesWithTheNewestReason) {
  const Events events = {{v1::JOB_STATE_RUNNING, "all ranks are up"},
                         {v1::JOB_STATE_PAUSING, "the ranks leave: for Ann"},
                         {v1::JOB_STATE_PAUSED, "stays paused: for Bob"}};
  EXPECT_TRUE(Heard(events, "for Bob"));
  EXPECT_FALSE(Heard(events, "for Ann"));
  EXPECT_FALSE(Heard(events, "Bob")) << "a suffix is a different reason";
}

TEST(HeardReason, IgnoresOtherEventsSince) {
  EXPECT_TRUE(Heard({{v1::JOB_STATE_PAUSING, "the ranks leave: for Ann"},
                     {v1::JOB_STATE_PAUSED, "paused at step 20: for Bob"}},
                    "for Ann"));
}

TEST(HeardReason, IgnoresReasonsBeforeTheJobResumed) {
  EXPECT_FALSE(Heard({{v1::JOB_STATE_PAUSED, "stays paused: for Ann"},
                      {v1::JOB_STATE_QUEUED, "resumed"},
                      {v1::JOB_STATE_PAUSED, "paused before its next attempt was launched"}},
                     "for Ann"));
  EXPECT_FALSE(Heard({}, "for Ann"));
}

}  // namespace
}  // namespace fsdpd
