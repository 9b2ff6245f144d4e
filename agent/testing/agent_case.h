// Test node: a complete agent of a scripted coordinator, with real rank processes (fake_rank), and the
// messages that start and stop its ranks.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "agent/agent.h"
#include "agent/testing/scripted_coordinator.h"
#include "base/temp_dir.h"

namespace fsdpd {

// Test binaries run in the directory of their runfiles.
inline constexpr char kFakeRank[] = "agent/testing/fake_rank";

struct Node {
  explicit Node(ScriptedCoordinator* coordinator, int slots = 4,
                std::function<absl::StatusOr<DeviceOffer>()> probe = nullptr) {
    options.coordinator = coordinator->address();
    options.node = "node-0";
    options.offer.slots = slots;
    options.offer.memory_bytes_per_slot = 1 << 20;
    options.offer.host_memory_bytes = 1 << 30;
    options.probe = std::move(probe);
    options.work_dir = work.File("ranks");
    options.rank_binary = kFakeRank;
    Start();
  }
  void Start() {
    agent.reset();  // It holds the lock of the work directory.
    absl::StatusOr<std::unique_ptr<Agent>> started =
        Agent::Start(options, [this](const absl::Status& why) { refused.set_value(why); });
    EXPECT_TRUE(started.ok()) << started.status();
    agent = *std::move(started);
  }
  AgentOptions options;
  TempDir work;
  std::promise<absl::Status> refused;
  std::unique_ptr<Agent> agent;
};

inline v1::CoordinatorMessage Launch(const std::string& behavior, int attempt = 1, int ranks = 1,
                                     int world = 0) {
  v1::CoordinatorMessage message;
  v1::Launch* launch = message.mutable_launch();
  launch->set_job_id(behavior + "-k3x9q2");
  launch->set_attempt(attempt);
  launch->mutable_spec()->set_name(behavior);
  launch->mutable_spec()->mutable_train()->set_steps(3);
  launch->set_world_size(world == 0 ? ranks : world);
  launch->set_ranks(ranks);
  for (int i = 0; i < ranks; ++i) launch->add_devices(i);
  launch->mutable_memory_plan()->set_peak_bytes(400);  // Differs from what fake_rank reports.
  launch->mutable_memory_plan()->add_components()->set_name("optimizer");
  launch->mutable_memory_plan()->mutable_components(0)->set_bytes(400);
  return message;
}

inline v1::CoordinatorMessage Stop(const std::string& job, int attempt, int64_t grace_ms) {
  v1::CoordinatorMessage message;
  message.mutable_stop()->set_job_id(job);
  message.mutable_stop()->set_attempt(attempt);
  message.mutable_stop()->set_grace_ms(grace_ms);
  message.mutable_stop()->set_reason("test");
  return message;
}

}  // namespace fsdpd
