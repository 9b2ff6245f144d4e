#include "fsdp/engine/rank_run.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

// Two ranks as threads over one store; `change` is asked before each runs.
std::vector<absl::Status> RunTwo(const Plan& plan, const std::function<void(int, RankRun*)>& change) {
  LocalStore store;
  std::vector<ConnectedMesh> mesh = MakeLocalMesh(plan.spec.mesh, plan.layout.exchanged_groups());
  std::vector<absl::Status> statuses(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      RankRun run;
      run.plan = &plan;
      run.rank = rank;
      run.store = &store;
      run.local = &mesh[rank];
      change(rank, &run);
      statuses[rank] = RunRank(std::move(run));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return statuses;
}

Plan TwoRankPlan() { return *AcceptedPlan(Over(TestJob(), TestMesh{}, 2)); }

TEST(RankRun, HooksComeInTheOrderOfALife) {
  const Plan plan = TwoRankPlan();
  std::vector<std::string> life;
  const auto told = [&life](const char* what) {
    life.push_back(what);
    return absl::OkStatus();
  };
  const auto statuses = RunTwo(plan, [&](int rank, RankRun* run) {
    if (rank != 0) return;
    run->on_made = [&](Trainer*, const v1::RestoredCheckpoint*) { return told("made"); };
    run->on_step = [&](const v1::StepReport&) { return told("step"); };
    run->on_trained = [&](Trainer*) { return told("trained"); };
    run->on_failed = [&](const absl::Status&) { life.push_back("failed"); };
    run->on_leaving = [&] { life.push_back("leaving"); };
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(status, absl::OkStatus());
  std::vector<std::string> expected(static_cast<size_t>(plan.spec.steps) + 3, "step");
  expected.front() = "made";
  expected[expected.size() - 2] = "trained";
  expected.back() = "leaving";
  EXPECT_EQ(life, expected);
}

TEST(RankRun, AHookThatFailsEndsTheOtherRankToo) {
  const Plan plan = TwoRankPlan();
  const absl::Status fails = absl::DataLossError("a hook of the test");
  for (const bool when_made : {true, false}) {
    std::vector<std::string> life;
    const auto statuses = RunTwo(plan, [&](int rank, RankRun* run) {
      if (rank != 1) return;
      if (when_made) run->on_made = [&](Trainer*, const v1::RestoredCheckpoint*) { return fails; };
      run->on_step = [&](const v1::StepReport&) { return fails; };
      run->on_failed = [&](const absl::Status& status) { life.emplace_back(status.message()); };
      run->on_leaving = [&] { life.push_back("leaving"); };
    });
    EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable) << statuses[0];
    EXPECT_EQ(statuses[1].code(), absl::StatusCode::kDataLoss) << statuses[1];
    ASSERT_EQ(life.size(), 2u);
    EXPECT_NE(life[0].find("a hook of the test"), std::string::npos) << life[0];
    EXPECT_EQ(life[1], "leaving");
  }
}

// Nobody's word comes through to the rank that has it.
class DeafStore : public Store {
 public:
  explicit DeafStore(Store* store) : store_(store) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_->Set(key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration) override {
    return absl::DeadlineExceededError(key + " did not come");
  }

 private:
  Store* const store_;
};

// The other has agreed and is in its first collective, or comes to it.
TEST(RankRun, ARankWhoseAgreementFailsAloneLeavesTheOthersGroups) {
  const Plan plan = TwoRankPlan();
  std::unique_ptr<DeafStore> deaf;
  const auto statuses = RunTwo(plan, [&](int rank, RankRun* run) {
    if (rank != 1) return;
    deaf = std::make_unique<DeafStore>(run->store);
    run->store = deaf.get();
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable) << statuses[0];
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kDeadlineExceeded) << statuses[1];
}

}  // namespace
}  // namespace fsdpd
