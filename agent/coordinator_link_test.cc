// What agent_test cannot reach: bounds and time that a test moves. The stream is real.
#include "agent/coordinator_link.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <vector>

#include "agent/testing/scripted_coordinator.h"

namespace fsdpd {
namespace {

// Half a second passes with every look at it.
class HurriedClock : public Clock {
 public:
  absl::Time Now() const override {
    clock_.Advance(absl::Milliseconds(500));
    return clock_.Now();
  }
  absl::Time Wall() const override { return clock_.Wall(); }

 private:
  mutable FakeClock clock_;
};

// Answers each order at once, as a supervisor does that hosts nothing of it.
class Answering : public CoordinatorLink::Handler {
 public:
  explicit Answering(Clock* clock) : clock_(clock) {}

  v1::Register Registration() override {
    v1::Register registration;
    registration.set_node("node-0");
    return registration;
  }
  void Connected(bool) override {}
  void Received(const v1::CoordinatorMessage& message) override {
    orders.push_back(clock_->Now());
    v1::AgentMessage answer;
    answer.mutable_stopped()->set_job_id(message.stop().job_id());
    answer.mutable_stopped()->set_attempt(message.stop().attempt());
    link->SendLifecycle(std::move(answer));
  }
  void Refused(const absl::Status& why) override { ADD_FAILURE() << why; }
  void Revoked() override {
    if (!told_.exchange(true)) revoked.set_value();
  }

  std::promise<void> revoked;

  CoordinatorLink* link = nullptr;
  std::vector<absl::Time> orders;  // When they came; read once the link has ended.

 private:
  Clock* const clock_;
  std::atomic<bool> told_ = false;
};

v1::CoordinatorMessage Stop(int attempt) {
  v1::CoordinatorMessage message;
  message.mutable_stop()->set_job_id("job");
  message.mutable_stop()->set_attempt(attempt);
  return message;
}

// A link that keeps two answers at a time and is sent three orders, which lead to one each.
template <typename LinkClock>
struct ThreeOrders {
  ThreeOrders() {
    handler.link = &link;
    link.Start();
    coordinator.AwaitRegister(1);
    for (int attempt = 1; attempt <= 3; ++attempt) coordinator.Send(Stop(attempt));
  }
  // Returns the times at which orders came, until the answer to `attempt` was seen and the link was ended.
  std::vector<absl::Time> UntilAnswerTo(int attempt) {
    coordinator.AwaitStopped("job", attempt);
    link.Shutdown(absl::ZeroDuration());
    return handler.orders;
  }

  ScriptedCoordinator coordinator;
  LinkClock clock;
  Answering handler{&clock};
  CoordinatorLink link{coordinator.address(), &handler, &clock, /*tls=*/{}, /*max_lifecycle=*/2};
};

TEST(CoordinatorLink, OrdersWaitUntilWhatTheyLedToHasSettledAndNothingIsLost) {
  const std::vector<absl::Time> orders = ThreeOrders<HurriedClock>().UntilAnswerTo(3);
  ASSERT_EQ(orders.size(), 3u);
  EXPECT_GE(orders[2] - orders[0], absl::Seconds(30)) << "what the first led to settles";
}

TEST(CoordinatorLink, AnOrderThatWaitsDoesNotKeepItFromEnding) {
  EXPECT_EQ(ThreeOrders<FakeClock>().UntilAnswerTo(2).size(), 2u);
}

TEST(CoordinatorLink, OfSeveralCoordinatorsItIsAttachedToTheOneThatLeads) {
  ScriptedCoordinator standby, leader;
  standby.Refuse(grpc::Status(grpc::StatusCode::UNAVAILABLE, "stands by"));
  FakeClock clock;
  Answering handler(&clock);
  // At the first nobody is.
  CoordinatorLink link(absl::StrCat("127.0.0.1:1,", standby.address(), ",", leader.address()), &handler,
                       Clock::Real());
  handler.link = &link;
  link.Start();
  leader.AwaitRegister(1);
  // The leader dies, and the one that stood by leads.
  standby.Refuse(grpc::Status::OK);
  leader.Cut();
  standby.AwaitRegister(1);
  link.Shutdown(absl::ZeroDuration());
}

// Its ranks trained on next to those of the next attempt.
TEST(CoordinatorLink, ARevokedCertificateIsReported) {
  ScriptedCoordinator coordinator;
  Answering handler(Clock::Real());
  CoordinatorLink link(coordinator.address(), &handler, Clock::Real());
  handler.link = &link;
  link.Start();
  coordinator.AwaitRegister(1);
  coordinator.Cut();
  coordinator.Refuse(grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "refused", "REVOKED_CERTIFICATE"));
  EXPECT_EQ(handler.revoked.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  link.Shutdown(absl::ZeroDuration());
}

// Its stream was cancelled, so the coordinator took its node for lost, with ranks that may still run.
TEST(CoordinatorLink, AnAgentThatStopsBeforeItsWelcomeLeavesInOrder) {
  ScriptedCoordinator coordinator;
  coordinator.WithholdWelcome();
  Answering handler(Clock::Real());
  CoordinatorLink link(coordinator.address(), &handler, Clock::Real());
  link.Start();
  coordinator.AwaitRegister(1);
  link.Shutdown(absl::ZeroDuration());
  EXPECT_TRUE(coordinator.AwaitEnd());
}

v1::CoordinatorMessage Welcome(int64_t epoch) {
  v1::CoordinatorMessage message;
  message.set_epoch(epoch);
  message.mutable_welcome();
  return message;
}

TEST(Attachment, OfSeveralCoordinatorsOneThatLedBeforeAnotherIsNotObeyed) {
  FakeClock clock;
  for (const bool several : {true, false}) {
    Attachment attachment(&clock, Outbox::kMaxLifecycle, several);
    attachment.Begin({});
    ASSERT_TRUE(attachment.Check(Welcome(7)).ok());
    attachment.Welcome(Welcome(7));
    attachment.End(false);
    attachment.Begin({});
    // One alone, whose state was put back from a copy, is.
    EXPECT_EQ(attachment.Check(Welcome(6)).ok(), !several);
    EXPECT_TRUE(attachment.Check(Welcome(8)).ok());
  }
}

// A rank's long lines grew the job's record: the coordinator keeps no more than this of them.
TEST(Attachment, LongTextsOfARankAreCutBeforeTheyAreSent) {
  FakeClock clock;
  Attachment attachment(&clock);
  attachment.Begin({});
  attachment.Welcome(Welcome(7));
  v1::AgentMessage exit;
  exit.mutable_rank()->set_job_id("job");
  exit.mutable_rank()->set_attempt(1);
  for (int line = 0; line < 40; ++line)
    exit.mutable_rank()->mutable_exit()->add_log_tail(std::string(15'000, 'x'));
  attachment.outbox().AddLifecycle(exit);
  v1::AgentMessage sent;
  int64_t ticket = 0;
  ASSERT_TRUE(attachment.Next(&sent, &ticket));
  ASSERT_TRUE(sent.rank().has_exit());
  EXPECT_LT(sent.ByteSizeLong(), 80u << 10);
}

v1::CoordinatorMessage Launch(int64_t epoch) {
  v1::CoordinatorMessage message;
  message.set_epoch(epoch);
  message.mutable_launch()->set_job_id("job");
  return message;
}

class LapsingTest : public testing::Test {
 protected:
  LapsingTest() { Attach(7); }
  void Attach(int64_t epoch) {
    attachment_.Begin({});
    attachment_.Welcome(Welcome(epoch));
  }
  bool Says(absl::Duration writing = absl::ZeroDuration()) {
    v1::AgentMessage message;
    int64_t ticket = 0;
    if (!attachment_.Next(&message, &ticket)) return false;
    clock_.Advance(writing);
    attachment_.Written(ticket);
    return true;
  }
  bool Obeys(int64_t epoch) const { return attachment_.Check(Launch(epoch)).ok(); }

  FakeClock clock_;
  Attachment attachment_{&clock_};
};

TEST_F(LapsingTest, ALaunchIsObeyedForAsLongAsThisAgentIsNotHeldLost) {
  clock_.Advance(Attachment::kLease);
  EXPECT_TRUE(Obeys(7)) << "it stood still for less than a lease";
  ASSERT_TRUE(Says());
  clock_.Advance(Attachment::kLease);
  EXPECT_TRUE(Obeys(7));
}

TEST_F(LapsingTest, AnAgentThatStoodStillForALeaseObeysNothingOfTheStreamFromBefore) {
  clock_.Advance(Attachment::kLease + absl::Milliseconds(1));
  EXPECT_TRUE(absl::IsCancelled(attachment_.Check(Launch(7))));
  EXPECT_FALSE(Says()) << "what is said now would hide it";
  EXPECT_FALSE(Obeys(7));
  attachment_.End(/*in_order=*/false);
  Attach(8);
  EXPECT_TRUE(Obeys(8));
  EXPECT_TRUE(attachment_.welcomed() && !attachment_.Lapsed());
}

TEST_F(LapsingTest, WhatWasBeingWrittenMeanwhileHidesNothing) {
  clock_.Advance(absl::Seconds(3));
  ASSERT_TRUE(Says(/*writing=*/Attachment::kLease));
  EXPECT_FALSE(Obeys(7));
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_FALSE(Obeys(7));
}

TEST_F(LapsingTest, WhatIsWrittenCountsFromBeforeItsWriting) {
  clock_.Advance(absl::Seconds(3));
  ASSERT_TRUE(Says(/*writing=*/absl::Seconds(5)));
  EXPECT_TRUE(Obeys(7));
  clock_.Advance(absl::Seconds(5));
  EXPECT_FALSE(Obeys(7));
}

// A process that was stopped, as it sees time when it goes on.
class LeapingClock : public Clock {
 public:
  absl::Time Now() const override { return Clock::Real()->Now() + absl::Seconds(leapt_.load()); }
  absl::Time Wall() const override { return Clock::Real()->Wall() + absl::Seconds(leapt_.load()); }
  void Leap(int seconds) { leapt_ += seconds; }

 private:
  std::atomic<int> leapt_ = 0;
};

// Stands still after it was given its first order, while others wait to be read.
class StandingStill : public Answering {
 public:
  explicit StandingStill(LeapingClock* clock) : Answering(clock), clock_(clock) {}
  void Received(const v1::CoordinatorMessage& message) override {
    attempts.push_back(message.stop().attempt());
    if (attempts.size() == 1) {
      all_sent.get_future().wait();
      clock_->Leap(seconds);
    }
    Answering::Received(message);
  }

  int seconds = 0;
  std::promise<void> all_sent;
  std::vector<int> attempts;  // Read once the link has ended.

 private:
  LeapingClock* const clock_;
};

std::vector<int> ObeyedAfterStandingStill(int seconds) {
  ScriptedCoordinator coordinator;
  LeapingClock clock;
  StandingStill handler(&clock);
  handler.seconds = seconds;
  CoordinatorLink link(coordinator.address(), &handler, &clock);
  handler.link = &link;
  link.Start();
  coordinator.AwaitRegister(1);
  for (int attempt = 1; attempt <= 2; ++attempt) coordinator.Send(Stop(attempt));
  handler.all_sent.set_value();
  coordinator.AwaitStopped("job", 1);
  if (absl::Seconds(seconds) > Attachment::kLease) coordinator.AwaitRegister(2);
  coordinator.Send(Stop(3));
  coordinator.AwaitStopped("job", 3);
  link.Shutdown(absl::ZeroDuration());
  return handler.attempts;
}

TEST(CoordinatorLink, WhoStoodStillForALeaseAttachesAnewAndObeysNothingFromBefore) {
  EXPECT_EQ(ObeyedAfterStandingStill(20), (std::vector<int>{1, 3}));
}

TEST(CoordinatorLink, WhoStoodStillForLessGoesOn) {
  EXPECT_EQ(ObeyedAfterStandingStill(5), (std::vector<int>{1, 2, 3}));
}

}  // namespace
}  // namespace fsdpd
