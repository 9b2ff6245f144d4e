// Tests with real rank processes (fake_rank) that report what the test sets.
#include "agent/gpu/node_preflight.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "agent/testing/supervisor_case.h"

namespace fsdpd {
namespace {

// Forwards events of preflight attempts, like AgentFlow.
class Forwarder : public Recorder {
 public:
  void RankMeasured(const RankId& id, const v1::PreflightDevice& device) override {
    Recorder::RankMeasured(id, device);
    if (IsPreflight(id.of)) preflight->Measured(id, device);
  }
  void RankExited(const RankId& id, const v1::RankExit& exit) override {
    Recorder::RankExited(id, exit);
    if (IsPreflight(id.of)) preflight->Exited(id, exit);
  }
  void AttemptGone(const AttemptId& id, bool stopped, const v1::FreedMemory& memory) override {
    if (IsPreflight(id)) preflight->Gone(id, stopped);
    Recorder::AttemptGone(id, stopped, memory);
  }
  Preflight* preflight = nullptr;
};

class PreflightTest : public SupervisorCase {
 protected:
  void SetUp() override {
    SupervisorCase::SetUp();
    options_.slots = 3;
    supervisor_ = std::make_unique<RankSupervisor>(options_, &logs_, &forwarder_, &clock_);
    preflight_ = std::make_unique<Preflight>(Preflight::Options{v1::DEVICE_CPU, 3}, supervisor_.get(),
                                             /*gpus=*/nullptr, &clock_, [this](v1::PreflightResult result) {
                                               MutexLock lock(&mutex_);
                                               results_.push_back(std::move(result));
                                               changed_.SignalAll();
                                             });
    forwarder_.preflight = preflight_.get();
  }
  void TearDown() override {
    supervisor_.reset();  // Before the objects that it calls.
    unsetenv("FSDPD_FAKE_PREFLIGHT");
  }

  void Begin(int64_t number) {
    v1::PreflightOrder order;
    order.set_number(number);
    order.set_limit_ms(60000);
    preflight_->Begin(order);
  }
  v1::PreflightResult Await(size_t count) {
    MutexLock lock(&mutex_);
    while (results_.size() < count) {
      if (changed_.WaitFor(&mutex_, kPatience)) continue;
      ADD_FAILURE() << "there is no result " << count;
      return {};
    }
    return results_[count - 1];
  }

  Forwarder forwarder_;
  std::unique_ptr<Preflight> preflight_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<v1::PreflightResult> results_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(PreflightTest, ReportsEveryDeviceAndNumbersAttempts) {
  for (int64_t number = 1; number <= 2; ++number) {
    Begin(number);
    const v1::PreflightResult result = Await(static_cast<size_t>(number));
    EXPECT_EQ(result.number(), number);
    EXPECT_EQ(result.error(), "");
    EXPECT_EQ(result.refused(), "");
    ASSERT_EQ(result.devices_size(), 3);
    for (int device = 0; device < 3; ++device) {
      EXPECT_EQ(result.devices(device).device(), device);
      EXPECT_EQ(result.devices(device).matmul_flops(), 1e9 * (device + 1));
    }
  }
}

TEST_F(PreflightTest, NamesADeviceThatHangs) {
  setenv("FSDPD_FAKE_PREFLIGHT", "hangs", 1);
  Begin(1);
  forwarder_.Await("measured 0");
  forwarder_.Await("measured 2");
  ASSERT_EQ(supervisor_->HostedAttempts().size(), 1u);
  // A large number would make the coordinator reject the registration.
  EXPECT_EQ(supervisor_->HostedAttempts()[0].attempt(), 1);
  Begin(2);  // Takes over the running preflight.
  Pass(absl::Seconds(62));
  const v1::PreflightResult result = Await(1);
  EXPECT_EQ(result.number(), 2);
  EXPECT_EQ(result.error().rfind("device 1 was not done after ", 0), 0u) << result.error();
  EXPECT_EQ(result.devices_size(), 2);
}

TEST_F(PreflightTest, ReportsTheErrorOfADevice) {
  setenv("FSDPD_FAKE_PREFLIGHT", "fails", 1);
  Begin(1);
  EXPECT_EQ(Await(1).error(), "device 1: no such device");
}

TEST_F(PreflightTest, IsRefusedWhileASlotIsInUse) {
  supervisor_->Launch(Launch("stay", 1, {2}));
  forwarder_.Await("launched 0 device 2");
  Begin(1);
  EXPECT_EQ(Await(1).refused(), "launch rejected: 3 ranks need as many slots, and 2 of 3 are free");
  EXPECT_EQ(Await(1).error(), "");
}

TEST_F(PreflightTest, IsRefusedWhenStopped) {
  setenv("FSDPD_FAKE_PREFLIGHT", "hangs", 1);
  Begin(1);
  forwarder_.Await("measured 2");
  supervisor_->StopAll(absl::Seconds(5));
  EXPECT_EQ(Await(1).refused(), "the preflight was stopped before it completed");
  EXPECT_EQ(Await(1).error(), "");
}

}  // namespace
}  // namespace fsdpd
