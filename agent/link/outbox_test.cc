#include "agent/link/outbox.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <string>

namespace fsdpd {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

v1::AgentMessage Exit(int rank) {
  v1::AgentMessage m;
  m.mutable_rank()->set_job_id("job");
  m.mutable_rank()->set_attempt(1);
  m.mutable_rank()->set_rank(rank);
  m.mutable_rank()->mutable_exit()->set_rank(rank);
  return m;
}
v1::AgentMessage Step(int64_t step) {
  v1::AgentMessage m;
  m.mutable_rank()->mutable_step()->set_step(step);
  return m;
}
v1::AgentMessage MakeTimeline(const std::string& job, int64_t step) {
  v1::AgentMessage m;
  m.mutable_rank()->set_job_id(job);
  m.mutable_rank()->mutable_timeline()->set_step(step);
  return m;
}
v1::AgentMessage Saved(int64_t step, const std::string& error = "", int attempt = 1) {
  v1::AgentMessage m;
  m.mutable_rank()->set_job_id("job");
  m.mutable_rank()->set_attempt(attempt);
  m.mutable_rank()->mutable_saved()->set_step(step);
  m.mutable_rank()->mutable_saved()->set_error(error);
  return m;
}
v1::AgentMessage Set(const std::string& job) {
  v1::AgentMessage m;
  m.mutable_rendezvous_set()->set_job_id(job);
  return m;
}
v1::AgentMessage Get(int64_t request) {
  v1::AgentMessage m;
  m.mutable_rendezvous_get()->set_job_id("job");
  m.mutable_rendezvous_get()->set_request(request);
  return m;
}
v1::AgentMessage Logs() {
  v1::AgentMessage m;
  m.mutable_logs()->set_request(1);
  return m;
}

std::string Name(const v1::AgentMessage& m) {
  if (m.has_rendezvous_set()) return absl::StrCat("set ", m.rendezvous_set().job_id());
  if (m.has_rendezvous_get()) return absl::StrCat("get ", m.rendezvous_get().request());
  if (m.has_logs()) return "logs";
  if (m.rank().has_timeline())
    return absl::StrCat("timeline ", m.rank().job_id(), m.rank().timeline().step());
  if (m.rank().has_saved())
    return absl::StrCat(m.rank().saved().error().empty() ? "saved " : "failed ", m.rank().saved().step());
  return m.rank().has_exit() ? absl::StrCat("exit ", m.rank().rank())
                             : absl::StrCat("step ", m.rank().step().step());
}

std::vector<std::string> Drain(Outbox* outbox, absl::Time now = kStart) {
  std::vector<std::string> names;
  v1::AgentMessage message;
  int64_t ticket;
  while (outbox->Next(&message, &ticket)) {
    names.push_back(Name(message));
    outbox->Sent(ticket, now);
  }
  return names;
}

// Settles every second, like the heartbeats of a stream.
void LiveOn(Outbox* outbox, absl::Time since, absl::Duration time) {
  for (absl::Duration passed; passed <= time; passed += absl::Seconds(1)) outbox->Settle(since + passed);
}

using Names = std::vector<std::string>;

TEST(Outbox, ResendsCheckpointUntilSettled) {
  Outbox outbox;
  outbox.AddSaved(Saved(100));
  outbox.AddStep(Step(101));
  EXPECT_EQ(Drain(&outbox), (Names{"saved 100", "step 101"}));
  outbox.NewStream();
  EXPECT_EQ(Drain(&outbox), Names{"saved 100"});
  LiveOn(&outbox, kStart, absl::Seconds(30));
  outbox.NewStream();
  EXPECT_EQ(Drain(&outbox), Names{});
}

TEST(Outbox, KeepsNewestCheckpointsPerKindWhileDisconnected) {
  Outbox outbox(/*max_steps=*/1, /*max_lifecycle=*/1);
  outbox.AddSaved(Saved(7, "", /*attempt=*/2));
  for (int step = 1; step <= kMaxKnownCheckpoints + 1; ++step) outbox.AddSaved(Saved(step));
  for (int step = 101; step <= 102 + kMaxKnownCheckpoints; ++step) outbox.AddSaved(Saved(step, "full"));
  EXPECT_TRUE(outbox.has_room()) << "orders go on: training bounds these, not orders";
  Names expected = {"saved 7"};
  for (int step = 2; step <= kMaxKnownCheckpoints + 1; ++step)
    expected.push_back(absl::StrCat("saved ", step));
  for (int step = 103; step <= 102 + kMaxKnownCheckpoints; ++step)
    expected.push_back(absl::StrCat("failed ", step));
  EXPECT_EQ(Drain(&outbox), expected);
}

TEST(Outbox, SendsInOrderAndResendsOnANewStream) {
  Outbox outbox;
  outbox.AddRendezvous(Set("job"));
  outbox.AddStep(Step(1));
  outbox.AddLogs(Logs());
  outbox.AddLifecycle(Exit(0));
  EXPECT_EQ(Drain(&outbox), (Names{"set job", "step 1", "logs", "exit 0"}));
  EXPECT_EQ(Drain(&outbox), Names{});
  outbox.NewStream();
  EXPECT_EQ(Drain(&outbox), (Names{"set job", "exit 0"}));
}

TEST(Outbox, KeepsLifecycleUntilSettled) {
  Outbox outbox;
  outbox.AddLifecycle(Exit(3));
  LiveOn(&outbox, kStart - absl::Hours(1), absl::Hours(1));  // Not sent: the coordinator is away.
  Drain(&outbox, kStart);
  LiveOn(&outbox, kStart, absl::Seconds(29));
  EXPECT_EQ(outbox.RetainedExits(), (std::vector<RankId>{{{"job", 1}, 3}}));
  outbox.NewStream();
  // The stream that carried it lasted less than 30 s.
  LiveOn(&outbox, kStart + absl::Seconds(29), absl::Seconds(31));
  EXPECT_EQ(Drain(&outbox, kStart + absl::Seconds(60)), Names{"exit 3"});
  LiveOn(&outbox, kStart + absl::Seconds(60), absl::Seconds(30));
  outbox.NewStream();
  EXPECT_EQ(Drain(&outbox), Names{});
  EXPECT_TRUE(outbox.RetainedExits().empty());
}

TEST(Outbox, SuspensionDoesNotSettleMessages) {
  Outbox outbox;
  outbox.AddLifecycle(Exit(3));
  Drain(&outbox, kStart);
  outbox.Settle(kStart);
  // Resumed after a suspension; the coordinator may have crashed meanwhile.
  outbox.Settle(kStart + absl::Minutes(5));
  outbox.NewStream();
  EXPECT_EQ(Drain(&outbox, kStart + absl::Minutes(5)), Names{"exit 3"});
}

TEST(Outbox, HasNoRoomUntilMessagesSettle) {
  Outbox outbox(/*max_steps=*/3, /*max_lifecycle=*/2);
  outbox.AddLifecycle(Exit(0));
  EXPECT_TRUE(outbox.has_room());
  outbox.AddLifecycle(Exit(1));
  EXPECT_FALSE(outbox.has_room());
  outbox.AddLifecycle(Exit(2));  // For a running rank: accepted beyond the limit.
  EXPECT_EQ(Drain(&outbox), (Names{"exit 0", "exit 1", "exit 2"}));
  EXPECT_FALSE(outbox.has_room()) << "a new stream must carry them again";
  LiveOn(&outbox, kStart, absl::Seconds(30));
  EXPECT_TRUE(outbox.has_room());
}

TEST(Outbox, DropsOldestStepsAndCountsThem) {
  Outbox outbox(/*max_steps=*/3);
  outbox.AddLifecycle(Exit(0));
  for (int step = 1; step <= 5; ++step) outbox.AddStep(Step(step));
  EXPECT_EQ(outbox.dropped_steps(), 2);
  EXPECT_EQ(Drain(&outbox), (Names{"exit 0", "step 3", "step 4", "step 5"}));
}

TEST(Outbox, TimelineReplacesAWaitingOneOfItsJob) {
  Outbox outbox(/*max_steps=*/3);
  outbox.AddStep(MakeTimeline("a", 1));
  outbox.AddStep(MakeTimeline("b", 1));
  outbox.AddStep(MakeTimeline("a", 2));
  outbox.AddStep(MakeTimeline("a", 3));
  EXPECT_EQ(Drain(&outbox), (Names{"timeline b1", "timeline a3"}));
  EXPECT_EQ(outbox.dropped_steps(), 0) << "nothing is missed that was worth telling";
  outbox.AddStep(MakeTimeline("a", 4));
  EXPECT_EQ(Drain(&outbox), Names{"timeline a4"});
}

TEST(Outbox, ForgetsAnsweredGetsAndEndedAttempts) {
  Outbox outbox;
  outbox.AddRendezvous(Set("job"));
  outbox.AddRendezvous(Set("other"));
  outbox.AddRendezvous(Get(7));
  outbox.AddRendezvous(Get(8));
  outbox.ForgetGet(7);
  EXPECT_EQ(Drain(&outbox), (Names{"set job", "set other", "get 8"}));
  outbox.ForgetRendezvous({"job", 0});
  outbox.NewStream();
  EXPECT_EQ(Drain(&outbox), Names{"set other"});
}

TEST(Outbox, DropsLogsWithTheStream) {
  Outbox outbox;
  outbox.AddLogs(Logs());
  outbox.AddLogs(Logs());
  EXPECT_EQ(outbox.waiting_logs(), 2);
  outbox.NewStream();
  EXPECT_EQ(outbox.waiting_logs(), 0);
  EXPECT_EQ(Drain(&outbox), Names{});
}

TEST(Outbox, ForgettingDuringAWriteKeepsTheCursor) {
  Outbox outbox;
  outbox.AddRendezvous(Get(7));
  outbox.AddLifecycle(Exit(0));
  v1::AgentMessage message;
  int64_t ticket;
  ASSERT_TRUE(outbox.Next(&message, &ticket));
  outbox.ForgetGet(7);
  outbox.Sent(ticket, kStart);
  EXPECT_EQ(Drain(&outbox), Names{"exit 0"});
}

TEST(Outbox, UndeliveredExcludesPreflightResults) {
  Outbox outbox;
  v1::AgentMessage measured;
  measured.mutable_preflight()->set_number(1);
  outbox.AddLifecycle(measured);
  outbox.AddLifecycle(Exit(1));
  ASSERT_EQ(outbox.Undelivered().size(), 1u);
  EXPECT_TRUE(outbox.Undelivered()[0].has_rank());
  v1::AgentMessage message;
  int64_t ticket = 0;
  ASSERT_TRUE(outbox.Next(&message, &ticket));
  EXPECT_TRUE(message.has_preflight()) << "its own streams carry it";
}

TEST(Outbox, UndeliveredIsWhatNoStreamCarried) {
  Outbox outbox;
  outbox.AddLifecycle(Exit(0));
  outbox.AddStep(Step(1));
  outbox.AddSaved(Saved(4));
  outbox.AddRendezvous(Set("job"));
  outbox.AddLifecycle(Exit(1));
  const auto undelivered = [&outbox] {
    std::vector<std::string> names;
    for (const v1::AgentMessage& message : outbox.Undelivered()) names.push_back(Name(message));
    return names;
  };
  const std::vector<std::string> all = {"exit 0", "saved 4", "exit 1"};
  EXPECT_EQ(undelivered(), all);
  outbox.NewStream();
  v1::AgentMessage message;
  int64_t ticket = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(outbox.Next(&message, &ticket));
    outbox.Sent(ticket, kStart);
  }
  EXPECT_EQ(undelivered(), std::vector<std::string>{"exit 1"});
  outbox.NewStream();
  EXPECT_EQ(undelivered(), all) << "what was on a stream that is gone may not have been read";
}

}  // namespace
}  // namespace fsdpd
