// Tests of limits and of times that a fake clock controls. The stream is real.
#include "agent/link/coordinator_link.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <vector>

#include "agent/testing/scripted_coordinator.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace fsdpd {
namespace {

// Advances by half a second whenever it is read.
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

// Answers each order immediately, like a supervisor that does not host the attempt.
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
  std::vector<absl::Time> orders;  // Arrival times; read after the link has ended.

 private:
  Clock* const clock_;
  std::atomic<bool> told_ = false;
};

class RefusedHandler : public Answering {
 public:
  using Answering::Answering;
  void Refused(const absl::Status& why) override { refused.set_value(why); }

  std::promise<absl::Status> refused;
};

grpc::Status Refusal(grpc::StatusCode code, const std::string& message, const std::string& id) {
  google::rpc::ErrorInfo info;
  info.set_reason(id);
  google::rpc::Status details;
  details.add_details()->PackFrom(info);
  return grpc::Status(code, message, details.SerializeAsString());
}

v1::CoordinatorMessage Stop(int attempt) {
  v1::CoordinatorMessage message;
  message.mutable_stop()->set_job_id("job");
  message.mutable_stop()->set_attempt(attempt);
  return message;
}

// A link that retains two results at a time, with three orders that lead to one result each.
template <typename LinkClock>
struct ThreeOrders {
  ThreeOrders() {
    handler.link = &link;
    link.Start();
    coordinator.AwaitRegister(1);
    for (int attempt = 1; attempt <= 3; ++attempt) coordinator.Send(Stop(attempt));
  }
  // Returns the arrival times of orders, until the result of `attempt` was seen and the link has ended.
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

TEST(CoordinatorLink, OrdersWaitUntilResultsSettle) {
  const std::vector<absl::Time> orders = ThreeOrders<HurriedClock>().UntilAnswerTo(3);
  ASSERT_EQ(orders.size(), 3u);
  EXPECT_GE(orders[2] - orders[0], absl::Seconds(30)) << "what the first led to settles";
}

TEST(CoordinatorLink, WaitingOrderDoesNotBlockShutdown) {
  EXPECT_EQ(ThreeOrders<FakeClock>().UntilAnswerTo(2).size(), 2u);
}

TEST(CoordinatorLink, AttachesToTheLeader) {
  ScriptedCoordinator standby, leader;
  standby.Refuse(Refusal(grpc::StatusCode::UNAVAILABLE, "a standby", "NOT_LEADER"));
  FakeClock clock;
  Answering handler(&clock);
  // The first address is unreachable.
  CoordinatorLink link(absl::StrCat("127.0.0.1:1,", standby.address(), ",", leader.address()), &handler,
                       Clock::Real());
  handler.link = &link;
  link.Start();
  leader.AwaitRegister(1);
  // The leader dies and the standby takes over.
  standby.Refuse(grpc::Status::OK);
  leader.Disconnect();
  standby.AwaitRegister(1);
  link.Shutdown(absl::ZeroDuration());
}

// Regression: ranks of a revoked node kept training next to those of the next attempt.
TEST(CoordinatorLink, ReportsARevokedCertificate) {
  ScriptedCoordinator coordinator;
  Answering handler(Clock::Real());
  CoordinatorLink link(coordinator.address(), &handler, Clock::Real());
  handler.link = &link;
  link.Start();
  coordinator.AwaitRegister(1);
  coordinator.Disconnect();
  coordinator.Refuse(Refusal(grpc::StatusCode::UNAUTHENTICATED, "refused", "REVOKED_CERTIFICATE"));
  EXPECT_EQ(handler.revoked.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  link.Shutdown(absl::ZeroDuration());
}

// Regression: the agent printed [UNAUTHENTICATED], which has no explanation.
TEST(CoordinatorLink, PassesTheErrorIdOfARefusal) {
  ScriptedCoordinator coordinator;
  coordinator.Refuse(Refusal(grpc::StatusCode::UNAUTHENTICATED, "refused", "REVOKED_CERTIFICATE"));
  RefusedHandler handler(Clock::Real());
  CoordinatorLink link(coordinator.address(), &handler, Clock::Real());
  link.Start();
  const absl::Status why = handler.refused.get_future().get();
  EXPECT_EQ(why.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(why.message(), "refused [REVOKED_CERTIFICATE]");
  link.Shutdown(absl::ZeroDuration());
}

// Regression: the stream was cancelled, so the coordinator declared the node lost, with ranks that might
// still run.
TEST(CoordinatorLink, StopsInOrderBeforeWelcome) {
  ScriptedCoordinator coordinator;
  coordinator.WithholdWelcome();
  Answering handler(Clock::Real());
  CoordinatorLink link(coordinator.address(), &handler, Clock::Real());
  link.Start();
  coordinator.AwaitRegister(1);
  link.Shutdown(absl::ZeroDuration());
  EXPECT_TRUE(coordinator.AwaitEnd());
}

v1::CoordinatorMessage Welcome(int64_t stream_generation) {
  v1::CoordinatorMessage message;
  message.set_stream_generation(stream_generation);
  message.mutable_welcome();
  return message;
}

TEST(Attachment, RejectsAFormerLeader) {
  FakeClock clock;
  for (const bool several : {true, false}) {
    Attachment attachment(&clock, Outbox::kMaxLifecycle, several);
    attachment.Begin({});
    ASSERT_TRUE(attachment.Check(Welcome(7)).ok());
    attachment.Welcome(Welcome(7));
    attachment.End(false);
    attachment.Begin({});
    // A single coordinator whose state was restored from a backup is accepted.
    EXPECT_EQ(attachment.Check(Welcome(6)).ok(), !several);
    EXPECT_TRUE(attachment.Check(Welcome(8)).ok());
  }
}

// Regression: long log lines of ranks increased the size of the job record. The coordinator stores no more
// than this of them.
TEST(Attachment, TruncatesLongTexts) {
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

v1::CoordinatorMessage Launch(int64_t stream_generation) {
  v1::CoordinatorMessage message;
  message.set_stream_generation(stream_generation);
  message.mutable_launch()->set_job_id("job");
  return message;
}

class LapsingTest : public testing::Test {
 protected:
  LapsingTest() { Attach(7); }
  void Attach(int64_t stream_generation) {
    attachment_.Begin({});
    attachment_.Welcome(Welcome(stream_generation));
  }
  bool Says(absl::Duration writing = absl::ZeroDuration()) {
    v1::AgentMessage message;
    int64_t ticket = 0;
    if (!attachment_.Next(&message, &ticket)) return false;
    clock_.Advance(writing);
    attachment_.Written(ticket);
    return true;
  }
  bool Obeys(int64_t stream_generation) const { return attachment_.Check(Launch(stream_generation)).ok(); }

  FakeClock clock_;
  Attachment attachment_{&clock_};
};

TEST_F(LapsingTest, AcceptsLaunchWithinTheLease) {
  clock_.Advance(Attachment::kLease);
  EXPECT_TRUE(Obeys(7)) << "it stood still for less than a lease";
  ASSERT_TRUE(Says());
  clock_.Advance(Attachment::kLease);
  EXPECT_TRUE(Obeys(7));
}

TEST_F(LapsingTest, RejectsMessagesAfterTheLease) {
  clock_.Advance(Attachment::kLease + absl::Milliseconds(1));
  EXPECT_TRUE(absl::IsCancelled(attachment_.Check(Launch(7))));
  EXPECT_FALSE(Says()) << "what is said now would hide it";
  EXPECT_FALSE(Obeys(7));
  attachment_.End(/*in_order=*/false);
  Attach(8);
  EXPECT_TRUE(Obeys(8));
  EXPECT_TRUE(attachment_.welcomed() && !attachment_.Lapsed());
}

TEST_F(LapsingTest, PendingWriteDoesNotExtendTheLease) {
  clock_.Advance(absl::Seconds(3));
  ASSERT_TRUE(Says(/*writing=*/Attachment::kLease));
  EXPECT_FALSE(Obeys(7));
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_FALSE(Obeys(7));
}

TEST_F(LapsingTest, LeaseCountsFromBeforeTheWrite) {
  clock_.Advance(absl::Seconds(3));
  ASSERT_TRUE(Says(/*writing=*/absl::Seconds(5)));
  EXPECT_TRUE(Obeys(7));
  clock_.Advance(absl::Seconds(5));
  EXPECT_FALSE(Obeys(7));
}

// Clock of a process that was suspended and resumes.
class LeapingClock : public Clock {
 public:
  absl::Time Now() const override { return Clock::Real()->Now() + absl::Seconds(leapt_.load()); }
  absl::Time Wall() const override { return Clock::Real()->Wall() + absl::Seconds(leapt_.load()); }
  void Leap(int seconds) { leapt_ += seconds; }

 private:
  std::atomic<int> leapt_ = 0;
};

// Suspends the process after its first order, while others are unread.
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
  std::vector<int> attempts;  // Read after the link has ended.

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

TEST(CoordinatorLink, ReconnectsAfterASuspensionBeyondTheLease) {
  EXPECT_EQ(ObeyedAfterStandingStill(20), (std::vector<int>{1, 3}));
}

TEST(CoordinatorLink, ContinuesAfterAShorterSuspension) {
  EXPECT_EQ(ObeyedAfterStandingStill(5), (std::vector<int>{1, 2, 3}));
}

}  // namespace
}  // namespace fsdpd
