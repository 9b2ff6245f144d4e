#include "coordinator/agents/trace_relay.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

// Ranks 0 and 1 are on one node, rank 2 on another; steps 5 and 6.
struct Case {
  Case() {
    job.set_id("tiny-1");
    job.set_attempt(2);
    int first = 0;
    for (const char* node : {"a", "b"}) {
      v1::Job::Placement* part = job.add_placements();
      part->set_node(node);
      part->set_first_rank(first);
      part->set_ranks(first == 0 ? 2 : 1);
      first += 2;
    }
    order.set_first_step(5);
    order.set_steps(2);
  }
  void Say(const std::string& node, int rank, int64_t step, int attempt = 2) {
    v1::TraceResult traced;
    traced.set_job_id("tiny-1");
    traced.set_attempt(attempt);
    traced.set_rank(rank);
    traced.mutable_trace()->set_step(step);
    relay.Take(node, traced);
  }

  v1::Job job;
  v1::TraceJobResponse::Order order;
  TraceRelay relay;
};

TEST(TraceRelay, DeliversEachResultOnce) {
  Case made;
  const auto wait = made.relay.Open(made.job, made.order);
  EXPECT_EQ(wait->missing(), 6);
  EXPECT_TRUE(wait->Next(absl::ZeroDuration()).empty());
  made.Say("a", 1, 5);
  made.Say("a", 1, 5);
  made.Say("b", 2, 6);
  const auto told = wait->Next(absl::ZeroDuration());
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].rank(), 1);
  EXPECT_EQ(told[1].node(), "b");
  EXPECT_EQ(told[1].trace().step(), 6);
  EXPECT_EQ(wait->missing(), 4);
  EXPECT_TRUE(wait->Next(absl::ZeroDuration()).empty());
}

TEST(TraceRelay, DropsUnexpectedResults) {
  Case made;
  const auto wait = made.relay.Open(made.job, made.order);
  made.Say("a", 1, 4);
  made.Say("a", 1, 7);
  made.Say("a", 1, 5, /*attempt=*/1);
  EXPECT_EQ(wait->missing(), 6);
}

TEST(TraceRelay, SupportsTwoWaitsAndOneClosed) {
  Case made;
  auto first = made.relay.Open(made.job, made.order);
  const auto second = made.relay.Open(made.job, made.order);
  made.Say("a", 0, 5);
  first.reset();
  made.Say("a", 0, 6);
  EXPECT_EQ(second->Next(absl::ZeroDuration()).size(), 2u);
}

}  // namespace
}  // namespace fsdpd
