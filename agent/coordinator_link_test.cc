// What agent_test cannot reach: bounds and time that a test moves. The stream is real.
#include "agent/coordinator_link.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

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

  CoordinatorLink* link = nullptr;
  std::vector<absl::Time> orders;  // When they came; read once the link has ended.

 private:
  Clock* const clock_;
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

}  // namespace
}  // namespace fsdpd
