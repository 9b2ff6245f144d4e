#include "fsdp/engine/rank_run.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/temp_dir.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/names/tensor_names.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Two ranks as threads over one store; `change` is called before each runs.
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

TEST(RankRun, CallsHooksInOrder) {
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

TEST(RankRun, FailedHookEndsTheOtherRank) {
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

// No answer arrives for this rank.
class UnresponsiveStore : public Store {
 public:
  explicit UnresponsiveStore(Store* store) : store_(store) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_->Set(key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration) override {
    return absl::DeadlineExceededError(key + " did not come");
  }

 private:
  Store* const store_;
};

// The other rank has agreed and is in its first collective, or reaches it.
TEST(RankRun, FailedAgreementDisconnects) {
  const Plan plan = TwoRankPlan();
  std::unique_ptr<UnresponsiveStore> deaf;
  const auto statuses = RunTwo(plan, [&](int rank, RankRun* run) {
    if (rank != 1) return;
    deaf = std::make_unique<UnresponsiveStore>(run->store);
    run->store = deaf.get();
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable) << statuses[0];
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kDeadlineExceeded) << statuses[1];
}

constexpr char kModel[] = "model.safetensors";

// A Hugging Face directory with the test job's model.
void WriteHf(const std::string& directory, const ModelConfig& model, char number) {
  std::vector<StoredTensor> tensors;
  for (const NamedParam& param : ParamsOf(model, Naming::kTransformers)) {
    const TestTensor tensor = MakeTestTensor(param.theirs, "float32", param.shape);
    tensors.push_back({tensor.name, tensor.type, tensor.shape, static_cast<int64_t>(tensor.numbers.size())});
  }
  const auto writer = MakeHfWriter(directory, tensors, 1 << 20, "{}");
  FSDPD_CHECK_OK(writer.status());
  for (size_t i = 0; i < tensors.size(); ++i)
    FSDPD_CHECK_OK((*writer)->Write(i, std::string(tensors[i].bytes, number).data()));
  FSDPD_CHECK_OK((*writer)->Finish());
  std::filesystem::remove(directory + "/config.json");  // It would describe another model.
}

// Hooks between rank 0's open of a file and rank 1's.
struct Replacement {
  std::string rank_1_asks;   // Key that rank 1 reads just before it opens the file.
  std::string rank_0_tells;  // Key that rank 0 sets once it has opened the file.
  std::string from, to;
};

class ReplacingStore : public Store {
 public:
  ReplacingStore(Store* store, Replacement replacement)
      : store_(store), replacement_(std::move(replacement)) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_->Set(key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    if (key == replacement_.rank_1_asks) {
      FSDPD_RETURN_IF_ERROR(store_->Get(replacement_.rank_0_tells, timeout).status());
      std::filesystem::rename(replacement_.from, replacement_.to);
    }
    return store_->Get(key, timeout);
  }

 private:
  Store* const store_;
  const Replacement replacement_;
};

std::vector<absl::Status> RunTwoWhileReplaced(const Plan& plan, const Replacement& replacement) {
  std::unique_ptr<ReplacingStore> replacing;
  return RunTwo(plan, [&](int rank, RankRun* run) {
    if (rank != 1) return;
    replacing = std::make_unique<ReplacingStore>(run->store, replacement);
    run->store = replacing.get();
  });
}

std::vector<absl::Status> LoadTwoWhileReplaced(char number) {
  const TempDir loaded, other;
  v1::JobSpec job = Over(TestJob(), TestMesh{}, 2);
  job.mutable_checkpoint()->set_load(loaded.path());
  const Plan plan = *AcceptedPlan(job);
  WriteHf(loaded.path(), plan.spec.model, 1);
  WriteHf(other.path(), plan.spec.model, number);
  return RunTwoWhileReplaced(
      plan, {"restore/0/verdict", "restore/files/0", other.File(kModel), loaded.File(kModel)});
}

// A download in progress, or a training run that writes there: half of each would be a mix of two models.
TEST(RankRun, RefusesFilesReplacedBetweenOpens) {
  for (const absl::Status& status : LoadTwoWhileReplaced(2)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("ranks opened different files of "), HasSubstr("model.safetensors: bytes ")));
  }
}

// Regression: 30 s of waiting for an earlier attempt were reported as reading the checkpoint.
TEST(RankRun, ExcludesLockWaitFromLoadTime) {
  const TempDir loaded, dir;
  v1::JobSpec job = Over(TestJob(), TestMesh{}, 2);
  job.mutable_checkpoint()->set_load(loaded.path());
  job.mutable_checkpoint()->set_dir(dir.path());
  const Plan plan = *AcceptedPlan(job);
  WriteHf(loaded.path(), plan.spec.model, 1);
  const std::string lock = dir.File(".fsdpd_lock");
  std::ofstream(lock) << "j token lost-node\n";
  const int held = open(lock.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(held, LOCK_EX | LOCK_NB), 0);
  FakeClock clock;
  TakeLog([&](Severity, absl::string_view line) {
    if (!absl::StartsWith(line, "waiting for the lock of checkpoint.dir ")) return;
    clock.Advance(absl::Seconds(30));
    close(held);
  });
  double seconds = -1;
  const auto statuses = RunTwo(plan, [&](int rank, RankRun* run) {
    run->clock = &clock;
    run->label.job = "j";
    if (rank != 0) return;
    run->on_made = [&](Trainer*, const v1::RestoredCheckpoint* restored) {
      seconds = restored->seconds();
      return absl::OkStatus();
    };
  });
  TakeLog(nullptr);
  for (const absl::Status& status : statuses) EXPECT_EQ(status, absl::OkStatus());
  EXPECT_EQ(clock.Now(), FakeClock().Now() + absl::Seconds(30)) << "it waited";
  EXPECT_EQ(seconds, 0);
}

// As on nodes with their own copies.
TEST(RankRun, RefusesDifferentTokenFiles) {
  for (const bool validation : {false, true}) {
    const TempDir dir;
    const std::string path = dir.File("tokens.bin");
    std::ofstream(path) << std::string(2000, '\0');
    std::ofstream(dir.File("other")) << std::string(1998, '\0');
    v1::JobSpec job = Over(TestJob(), TestMesh{}, 2);
    v1::TokenFile* const file =
        validation ? job.mutable_data()->add_validation() : job.mutable_data()->add_tokens();
    file->set_path(path);
    file->set_type(v1::TOKEN_TYPE_U16);
    if (validation) {
      job.mutable_train()->mutable_evaluation()->set_every_steps(1);
    } else {
      job.mutable_data()->clear_synthetic();
    }
    const Plan plan = *AcceptedPlan(job);
    const auto statuses =
        RunTwoWhileReplaced(plan, {"program/verdict", "data/files/0", dir.File("other"), path});
    const std::string field = validation ? "data.validation" : "data.tokens";
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(
          std::string(status.message()),
          AllOf(HasSubstr(absl::StrCat("ranks opened different token files: rank 1 differs from rank 0: ",
                                       field, "[0].path ", path, " = 1998 bytes, ")),
                HasSubstr(", not 2000 bytes, ")));
    }
  }
}

// All ranks see the same copies; a replacement during the run is detected at the end of reading.
TEST(RankRun, DetectsAFileReplacedWhileRead) {
  const auto statuses = LoadTwoWhileReplaced(1);
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDataLoss) << statuses[0];
  EXPECT_THAT(std::string(statuses[0].message()),
              HasSubstr("model.safetensors: file was replaced while it was read (was inode "));
}

}  // namespace
}  // namespace fsdpd
