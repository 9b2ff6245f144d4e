#include "client/text/top_text.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

v1::Job Job(const char* id, v1::JobState state, int64_t ranks) {
  v1::Job job;
  job.set_id(id);
  job.set_state(state);
  job.mutable_spec()->mutable_train()->set_steps(300);
  job.mutable_resolved()->mutable_resources()->set_nodes(1);
  job.mutable_resolved()->mutable_resources()->set_ranks_per_node(ranks);
  return job;
}

v1::Node Node(int slots, int free, bool connected) {
  v1::Node node;
  node.set_slots(slots);
  node.set_free_slots(free);
  node.set_connected(connected);
  return node;
}

TEST(TopText, ShowsCountsAndJobsWithSlots) {
  v1::Job running = Job("runs-1", v1::JOB_STATE_RUNNING, 2);
  v1::StepReport* step = running.mutable_last_step();
  step->set_step(164);
  step->set_loss(2.5);
  step->set_tokens(1000);
  step->set_step_seconds(0.5);
  step->set_exposed_seconds(0.06);
  step->mutable_power()->set_energy_joules(200);
  running.set_peak_bytes(103 << 20);
  v1::SlowRank* slow = running.add_slowest_ranks();
  slow->set_rank(1);
  slow->set_node("node-7");
  slow->set_score(1.524);
  running.mutable_memory_plan()->set_peak_bytes(100 << 20);
  const std::string text =
      TopText({Job("waits-1", v1::JOB_STATE_QUEUED, 4), running, Job("big-1", v1::JOB_STATE_STARTING, 8),
               Job("ended-1", v1::JOB_STATE_SUCCEEDED, 4)},
              {Node(8, 0, true), Node(4, 2, true), Node(8, 8, false)}, absl::UnixEpoch(), 0);
  EXPECT_EQ(text.find("2 of 3 nodes ready, 10 of 12 slots in use, 2 jobs have slots, 1 waits\n"), 0u) << text;
  EXPECT_LT(text.find("big-1 "), text.find("runs-1 ")) << "descending order of ranks\n" << text;
  for (const char* part : {"164/300", "2.5000", "2000", "500 ms", "exposed 12%", "1 on node-7, 1.52x",
                           "103.0 MiB (+3%)", "400 W"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  EXPECT_EQ(text.find("waits-1"), std::string::npos);
  EXPECT_EQ(text.find("ended-1"), std::string::npos);
}

TEST(TopText, DoesNotComparePeaksOfDifferentStages) {
  v1::Job job = Job("runs-1", v1::JOB_STATE_RUNNING, 2);
  job.set_peak_bytes(60 << 20);
  job.mutable_memory_plan()->set_peak_bytes(100 << 20);
  job.mutable_resolved()->mutable_parallel()->set_pipeline(2);
  const std::string text = TopText({job}, {}, absl::UnixEpoch(), 0);
  EXPECT_NE(text.find("60.0 MiB"), std::string::npos) << text;
  EXPECT_EQ(text.find("(-40%)"), std::string::npos) << text;
}

TEST(TopText, ShowsStragglerOnlyIfNotable) {
  v1::Job job = Job("runs-1", v1::JOB_STATE_RUNNING, 2);
  job.mutable_last_step()->set_step(1);
  job.add_slowest_ranks()->set_node("node-7");
  job.mutable_slowest_ranks(0)->set_score(1.04);
  EXPECT_EQ(TopText({job}, {}, absl::UnixEpoch(), 0).find("node-7"), std::string::npos);
  job.mutable_slowest_ranks(0)->set_score(1.05);
  EXPECT_NE(TopText({job}, {}, absl::UnixEpoch(), 0).find("0 on node-7, 1.05x"), std::string::npos);
  job.set_state(v1::JOB_STATE_STOPPING);
  EXPECT_EQ(TopText({job}, {}, absl::UnixEpoch(), 0).find("node-7"), std::string::npos)
      << "only for running jobs";
}

TEST(TopText, ShowsStalledJob) {
  v1::Job job = Job("still-1", v1::JOB_STATE_RUNNING, 2);
  job.set_stalled_since_unix_nanos(absl::ToUnixNanos(absl::FromUnixSeconds(1000)));
  const std::string text = TopText({job}, {}, absl::FromUnixSeconds(1042), 0);
  EXPECT_NE(text.find("running, no step for 42 s"), std::string::npos) << text;
}

}  // namespace
}  // namespace fsdpd
