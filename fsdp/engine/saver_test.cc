#include "fsdp/engine/saver.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/check.h"
#include "base/temp_dir.h"
#include "fsdp/checkpoint/job_folder.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;

// Of two ranks.
Plan PlanOf(const std::string& dir) {
  v1::JobSpec job;
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      R"({"name": "test", "data": {"synthetic": {}, "sequence_length": 8},
          "model": {"llama": {"vocab_size": 37, "hidden_size": 20, "intermediate_size": 36, "layers": 1,
                              "heads": 2, "kv_heads": 1}},
          "train": {"steps": 6, "global_batch": 4},
          "fsdp": {"strategy": "STRATEGY_OPTIM_GRADS_PARAMS"},
          "resources": {"ranks_per_node": 2, "device": "DEVICE_CPU"}})",
      &job);
  FSDPD_CHECK(parsed.ok());
  job.mutable_checkpoint()->set_dir(dir);
  job.mutable_checkpoint()->set_every_steps(3);
  auto plan = AcceptedPlan(job);
  FSDPD_CHECK_OK(plan.status());
  return *std::move(plan);
}

// Takes what is set, and is gone for who asks: as the channel of a rank that is leaving.
class LeavingStore : public Store {
 public:
  absl::Status Set(const std::string&, const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<std::string> Get(const std::string&, absl::Duration) override {
    return absl::UnavailableError("leaving");
  }
};

// Of rank 1, after step 3.
void SaveAlone(const Plan& plan, Store* store) {
  const std::atomic<bool> stop{false};
  const MeshPosition position{plan.spec.mesh, 1};
  const auto snapshot = Snapshot::Make(plan.spec, plan.layout, position);
  FSDPD_CHECK_OK(snapshot.status());
  Saver::Options options;
  options.plan = &plan;
  options.position = position;
  options.store = store;
  options.stop = &stop;
  const auto saver = Saver::Make(options, snapshot->get());
  FSDPD_CHECK_OK(saver.status());
  (*saver)->Write({3, 12, 3, 1, 0});
  (*saver)->AwaitFree();
}

// Rank 0 may be committing it: without the file that would be a damaged checkpoint, and older ones go.
TEST(Saver, KeepsItsFileWhenItLeavesBeforeItKnowsWhatCameOfIt) {
  const TempDir dir;
  LeavingStore store;
  SaveAlone(PlanOf(dir.path()), &store);
  EXPECT_TRUE(fs::exists(CheckpointPath(dir.path(), 3) + "/__1_0.distcp"));
}

TEST(Saver, RemovesItsFileWhenNothingCameOfIt) {
  const TempDir dir;
  LocalStore store;
  ASSERT_TRUE(store.Set("save/0", "rank 0: write __0_0.distcp: No space left on device").ok());
  SaveAlone(PlanOf(dir.path()), &store);
  EXPECT_FALSE(fs::exists(CheckpointPath(dir.path(), 3)));
}

}  // namespace
}  // namespace fsdpd
