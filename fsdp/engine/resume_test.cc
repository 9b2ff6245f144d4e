// Saving and resuming jobs: with other meshes, strategies and batch sizes, and after damage by a broken disk
// or a killed attempt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/engine/directory_lock.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

const TestMesh kNoShard{"no_shard", v1::STRATEGY_NO_SHARD};
const TestMesh kOptim{"optim", v1::STRATEGY_OPTIM};
const TestMesh kOptimGrads{"optim_grads", v1::STRATEGY_OPTIM_GRADS};
const TestMesh kParams{"optim_grads_params", v1::STRATEGY_OPTIM_GRADS_PARAMS};
const TestMesh kHsdp{"hsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_NO_SHARD};
const TestMesh kHfsdp{"hfsdp", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::STRATEGY_OPTIM};

// Of six steps, saves after 3 and 6.
v1::JobSpec Saving(v1::JobSpec job, const std::string& dir) {
  job.mutable_checkpoint()->set_dir(dir);
  job.mutable_checkpoint()->set_every_steps(3);
  return job;
}

v1::JobSpec Loading(v1::JobSpec job, const std::string& path) {
  job.clear_checkpoint();
  job.mutable_checkpoint()->set_load(path);
  return job;
}

std::vector<int64_t> StepsIn(const std::string& dir) {
  const auto found = ListCheckpoints(dir);
  EXPECT_TRUE(found.ok()) << found.status();
  std::vector<int64_t> steps;
  for (const FoundCheckpoint& each : *found) {
    if (each.committed) steps.push_back(each.step);
  }
  return steps;
}

// Expects steps 4 to 6 of `resumed`, and the final weights, to match `whole`. 0: bit-identical.
void ExpectContinues(const LocalJobResult& whole, const LocalJobResult& resumed, double relative) {
  LocalJobResult rest = whole;
  for (auto& reports : rest.reports) reports.erase(reports.begin(), reports.begin() + 3);
  ASSERT_THAT(resumed.reports[0], SizeIs(3));
  EXPECT_EQ(resumed.reports[0][0].step(), 4);
  for (int s = 0; s < 3; ++s) {
    EXPECT_EQ(resumed.reports[0][s].learning_rate(), rest.reports[0][s].learning_rate());
    EXPECT_EQ(resumed.reports[0][s].loss_scale(), rest.reports[0][s].loss_scale());
  }
  ExpectSame(rest, resumed, relative);
}

absl::Status Outcome(const v1::JobSpec& job, const std::string& id, int64_t fails_after = 100) {
  const auto plan = AcceptedPlan(job);
  if (!plan.ok()) return plan.status();
  LocalJobOptions options;
  options.label.job = id;
  options.on_step = [fails_after](const v1::StepReport& report) {
    return report.step() < fails_after ? absl::OkStatus() : absl::InternalError("as a killed rank");
  };
  return RunLocalJob(*plan, options).status();
}

LocalJobResult RunAs(const v1::JobSpec& job, const std::string& id) {
  LocalJobOptions options;
  options.label.job = id;
  return Train(job, options);
}

void FlipByte(const std::string& path, std::streamoff at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
}

TEST(Resume, SavesOnScheduleAndAtTheEnd) {
  const TempDir dir;
  v1::JobSpec job = Saving(Over(TestJob(), kParams, 2), dir.File("runs"));
  job.mutable_checkpoint()->set_every_steps(4);
  const LocalJobResult result = Train(job);
  EXPECT_THAT(StepsIn(dir.File("runs")), ElementsAre(6, 4));
  ASSERT_THAT(result.saved, SizeIs(2));
  EXPECT_EQ(result.saved[0].step(), 4);
  EXPECT_EQ(result.saved[0].path(), dir.File("runs") + "/iter_0000004");
  EXPECT_EQ(result.saved[0].error(), "");
  EXPECT_GT(result.saved[0].bytes(), 12 * static_cast<int64_t>(result.weights.size()));
  EXPECT_FALSE(result.restored.has_value());
}

TEST(Resume, AppliesRetention) {
  const TempDir dir;
  v1::JobSpec job = Saving(Over(TestJob(), kParams, 2), dir.path());
  job.mutable_checkpoint()->set_every_steps(1);
  job.mutable_checkpoint()->set_keep_last(2);
  job.mutable_checkpoint()->set_keep_every(3);
  Train(job);
  EXPECT_THAT(StepsIn(dir.path()), ElementsAre(6, 5, 3));
}

TEST(Resume, SavingDoesNotChangeTraining) {
  const TempDir dir;
  for (const bool ahead : {false, true}) {
    LocalJobOptions options;
    options.run_ahead_on_cpu = ahead;
    v1::JobSpec job = Over(TestJob(), kHfsdp, 4, 3);
    const LocalJobResult plain = Train(job, options);
    job = Saving(job, dir.File(ahead ? "ahead" : "in_turn"));
    job.mutable_checkpoint()->set_every_steps(1);
    ExpectSame(plain, Train(job, options), 0);
  }
}

// The order of sums differs between world sizes. Within one, where norm and micro-batches do not matter,
// results are bit-identical.
TEST(Resume, OverAnyWorldAndStrategy) {
  const TempDir dir;
  const v1::JobSpec job = TestJob();
  const LocalJobResult whole = Train(Saving(Over(job, kParams, 4), dir.path()));
  const std::string path = CheckpointPath(dir.path(), 3);
  for (const TestMesh& mesh : {kNoShard, kOptim, kOptimGrads, kParams}) {
    for (const int world : {1, 2, 3, 4}) {
      SCOPED_TRACE(mesh.name + " over " + std::to_string(world));
      const LocalJobResult resumed = Train(Loading(Over(job, mesh, world), path));
      ASSERT_TRUE(resumed.restored.has_value());
      EXPECT_EQ(resumed.restored->step(), 3);
      EXPECT_EQ(resumed.restored->path(), path);
      ExpectContinues(whole, resumed, world == 4 && mesh.strategy == kParams.strategy ? 0 : 1e-5);
    }
  }
  for (const TestMesh& mesh : {kHsdp, kHfsdp}) {
    SCOPED_TRACE(mesh.name);
    ExpectContinues(whole, Train(Loading(Over(job, mesh, 4, 3), path)), 1e-5);
  }
}

TEST(Resume, FromEveryStrategy) {
  for (const TestMesh& mesh : {kNoShard, kOptim, kOptimGrads, kHsdp, kHfsdp}) {
    SCOPED_TRACE(mesh.name);
    const TempDir dir;
    const v1::JobSpec job = Over(TestJob(), mesh, 4, 3);
    const LocalJobResult whole = Train(Saving(job, dir.path()));
    const std::string path = CheckpointPath(dir.path(), 3);
    ExpectContinues(whole, Train(Loading(job, path)), 0);
    ExpectContinues(whole, Train(Loading(Over(TestJob(), kNoShard, 1), path)), 1e-5);
  }
}

TEST(Resume, OfEveryOptimizerAndType) {
  v1::JobSpec bf16_moments = TestJob(), fp8_moments = TestJob(), momentum = TestJob(), fp16 = TestJob(),
              frozen = TestJob(), tied = TestJob(), warm_up = TestJob();
  bf16_moments.mutable_precision()->set_moments(v1::DTYPE_BF16);
  fp8_moments.mutable_precision()->set_moments(v1::DTYPE_FP8);
  fp8_moments.mutable_optimizer()->set_clip_norm(1);
  momentum.mutable_optimizer()->clear_adamw();
  momentum.mutable_optimizer()->mutable_sgd()->set_lr(0.1);
  momentum.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  fp16.mutable_precision()->set_compute(v1::DTYPE_FP16);
  // So high that steps are skipped before and after the checkpoint, and growing in between.
  fp16.mutable_precision()->mutable_loss_scale()->set_initial(1 << 19);
  fp16.mutable_precision()->mutable_loss_scale()->set_growth_interval(2);
  frozen.mutable_train()->add_frozen("layer.0.*");
  tied.mutable_model()->mutable_llama()->set_tied_embeddings(true);
  warm_up.mutable_schedule()->mutable_cosine()->set_warmup_steps(4);
  for (v1::JobSpec job : {bf16_moments, fp8_moments, momentum, fp16, frozen, tied, warm_up}) {
    SCOPED_TRACE(job.ShortDebugString());
    const TempDir dir;
    job = Over(job, kParams, 3);
    const LocalJobResult whole = Train(Saving(job, dir.path()));
    if (job.precision().compute() == v1::DTYPE_FP16) {
      const auto skipped = [](const v1::StepReport& report) { return report.skipped(); };
      const auto begin = whole.reports[0].begin(), middle = begin + 3, end = whole.reports[0].end();
      EXPECT_TRUE(std::any_of(begin, middle, skipped));
      EXPECT_TRUE(std::any_of(middle, end, skipped));
    }
    ExpectContinues(whole, Train(Loading(job, CheckpointPath(dir.path(), 3))), 0);
  }
}

TEST(Resume, ParametersOnlyStartsAtStepOne) {
  const TempDir dir;
  const v1::JobSpec job = Over(TestJob(), kParams, 2);
  LocalJobOptions from;
  from.weights = Train(Saving(job, dir.path())).weights;
  v1::JobSpec tune = Loading(job, dir.path());
  tune.mutable_checkpoint()->set_load_optimizer(false);
  const LocalJobResult tuned = Train(tune);
  ASSERT_TRUE(tuned.restored.has_value());
  EXPECT_EQ(tuned.restored->step(), 0);
  EXPECT_EQ(tuned.restored->path(), CheckpointPath(dir.path(), 6));  // The newest.
  ExpectSame(Train(job, from), tuned, 0);
}

TEST(Resume, IsNoOpAfterItsLastStep) {
  const TempDir dir;
  const v1::JobSpec job = Saving(Over(TestJob(), kParams, 2), dir.path());
  const LocalJobResult whole = RunAs(job, "job-1");
  const LocalJobResult resumed = RunAs(job, "job-1");
  EXPECT_THAT(resumed.reports[0], IsEmpty());
  EXPECT_EQ(resumed.weights, whole.weights);
  // For another job's checkpoint it is an error.
  EXPECT_THAT(Outcome(Loading(Over(TestJob(), kParams, 2), dir.path()), "job-2").message(),
              HasSubstr("is at step 6 and train.steps is 6: no steps left"));
}

// What is kept for others is what other jobs start from.
TEST(Resume, FromAnExportedHuggingFaceDirectory) {
  const TempDir dir;
  v1::JobSpec job = Saving(Over(TestJob(), kParams, 3), dir.path());
  job.mutable_checkpoint()->set_export_("hf");
  const LocalJobResult whole = RunAs(job, "job-1");
  ASSERT_THAT(whole.saved, SizeIs(3));
  EXPECT_EQ(whole.saved[2].format(), "hf");
  EXPECT_EQ(whole.saved[2].error(), "");
  EXPECT_EQ(whole.saved[2].path(), dir.File("hf"));
  EXPECT_EQ(whole.saved[2].bytes(), 4 * static_cast<int64_t>(whole.weights.size()));
  LocalJobOptions from;
  from.weights = whole.weights;
  for (const TestMesh& mesh : {kNoShard, kParams, kHfsdp}) {
    SCOPED_TRACE(mesh.name);
    const v1::JobSpec next = Over(TestJob(), mesh, 4);
    const LocalJobResult started = Train(Loading(next, dir.File("hf")));
    ASSERT_TRUE(started.restored.has_value());
    EXPECT_EQ(started.restored->step(), 0);
    EXPECT_EQ(started.restored->path(), dir.File("hf"));
    ExpectSame(Train(next, from), started, 0);
  }
}

// The previous attempt may have died during the save.
TEST(Resume, ExportsAfterTheLastStep) {
  const TempDir dir;
  v1::JobSpec job = Saving(Over(TestJob(), kParams, 2), dir.path());
  RunAs(job, "job-1");
  job.mutable_checkpoint()->set_export_("hf");
  const LocalJobResult resumed = RunAs(job, "job-1");
  EXPECT_THAT(resumed.reports[0], IsEmpty());
  ASSERT_THAT(resumed.saved, SizeIs(1));
  EXPECT_EQ(resumed.saved[0].error(), "");
  EXPECT_TRUE(fs::exists(dir.File("hf/model.safetensors")));
}

TEST(Resume, ReportsAFailedExport) {
  const TempDir dir;
  std::ofstream(dir.File("hf")) << "a file where a directory should be";
  v1::JobSpec job = Saving(Over(TestJob(), kParams, 2), dir.path());
  job.mutable_checkpoint()->set_export_("hf");
  const LocalJobResult result = RunAs(job, "job-1");
  ASSERT_THAT(result.saved, SizeIs(3));
  EXPECT_THAT(result.saved[2].error(), HasSubstr("already exists"));
  EXPECT_THAT(StepsIn(dir.path()), ElementsAre(6, 3));
}

// A checkpoint that is removed while the job runs must free its disk space.
TEST(Resume, ClosesFilesOfItsStart) {
  const TempDir dir;
  const v1::JobSpec job = Over(TestJob(), kParams, 2);
  Train(Saving(job, dir.path()));
  LocalJobOptions options;
  int steps = 0;
  options.on_step = [&](const v1::StepReport&) {  // All ranks have started by then.
    ++steps;
    for (const auto& open : fs::directory_iterator("/proc/self/fd")) {
      std::error_code gone;  // Descriptor of the directory listing.
      EXPECT_THAT(fs::read_symlink(open.path(), gone).string(), Not(HasSubstr(dir.path())));
    }
    return absl::OkStatus();
  };
  Train(Loading(job, CheckpointPath(dir.path(), 3)), options);
  EXPECT_EQ(steps, 3);
}

TEST(Resume, FromOwnDirectory) {
  const TempDir dir;
  const v1::JobSpec job = Over(TestJob(), kParams, 2);
  const LocalJobResult whole = Train(job);
  EXPECT_THAT(Outcome(Saving(job, dir.path()), "job-1", 5).message(), HasSubstr("as a killed rank"));
  EXPECT_THAT(StepsIn(dir.path()), ElementsAre(3));
  ExpectContinues(whole, RunAs(Saving(job, dir.path()), "job-1"), 0);
}

// As with lost nodes (Restart.elastic): the global batch stays the same, in more micro-batches.
TEST(Resume, ElasticWorldSize) {
  const TempDir dir;
  const v1::JobSpec job = Saving(Over(TestJob(), kParams, 4), dir.path());
  const LocalJobResult whole = Train(Over(TestJob(), kParams, 4));
  EXPECT_FALSE(Outcome(job, "job-1", 5).ok());
  for (const int world : {2, 1}) {
    SCOPED_TRACE(world);
    v1::JobSpec smaller = Over(job, kParams, world, /*micro_batches=*/4 / world);
    EXPECT_EQ(smaller.train().global_batch(), job.train().global_batch());
    EXPECT_EQ(smaller.train().micro_batch(), job.train().micro_batch());
    smaller.mutable_checkpoint()->set_every_steps(0);  // The next world resumes from the same one.
    smaller.mutable_checkpoint()->set_every_minutes(1000);
    smaller.mutable_checkpoint()->set_on_end(false);
    ExpectContinues(whole, RunAs(smaller, "job-1"), 1e-5);
  }
  ExpectContinues(whole, RunAs(job, "job-1"), 0);
}

// Regression: a checkpoint committed during the evaluation after its step, and the next attempt began after
// it.
TEST(Resume, RepeatsStepWhoseEvaluationIsNotReported) {
  const TempDir dir;
  std::ofstream(dir.File("tokens.bin"), std::ios::binary) << std::string(200, '\0');
  v1::JobSpec job = Saving(Over(TestJob(), kParams, 2), dir.File("runs"));
  job.mutable_train()->mutable_evaluation()->set_every_steps(3);
  v1::TokenFile* const file = job.mutable_data()->add_validation();
  file->set_path(dir.File("tokens.bin"));
  file->set_type(v1::TOKEN_TYPE_U16);
  EXPECT_FALSE(Outcome(job, "job-1", 3).ok());
  EXPECT_THAT(StepsIn(dir.File("runs")), IsEmpty());
  const LocalJobResult again = RunAs(job, "job-1");
  ASSERT_THAT(again.reports[0], SizeIs(6));
  EXPECT_TRUE(again.reports[0][2].has_evaluation());
  EXPECT_THAT(StepsIn(dir.File("runs")), SizeIs(2));
}

// For training or for evaluation.
TEST(Resume, NotesAChangedTokenFile) {
  for (const bool trains : {true, false}) {
    const TempDir dir;
    const std::string path = dir.File("tokens.bin");
    const auto write = [&path](int tokens, char token) {
      std::ofstream file(path, std::ios::binary);
      for (int i = 0; i < tokens; ++i) file << token << '\0';
    };
    v1::JobSpec job = Saving(Over(TestJob(), kParams, 2), dir.File("runs"));
    if (trains) job.mutable_data()->clear_synthetic();
    if (!trains) job.mutable_train()->mutable_evaluation()->set_every_steps(3);
    v1::TokenFile* file = trains ? job.mutable_data()->add_tokens() : job.mutable_data()->add_validation();
    file->set_path(path);
    file->set_type(v1::TOKEN_TYPE_U16);
    write(200, 3);
    EXPECT_FALSE(Outcome(job, "job-1", 5).ok());
    write(200, 4);
    const auto has_changed = ::testing::Contains(
        ::testing::AllOf(HasSubstr(path + " has changed (was 400 bytes"), HasSubstr(", now 400 bytes")));
    EXPECT_THAT(RunAs(job, "job-1").restored->notes(), has_changed);
    // A later resume from there notes it too.
    v1::JobSpec other = Over(job, kParams, 2);
    other.clear_checkpoint();
    other.mutable_checkpoint()->set_load(dir.File("runs") + "/iter_0000003");
    EXPECT_THAT(RunAs(other, "").restored->notes(), has_changed);
    write(200, 3);
    EXPECT_THAT(RunAs(other, "").restored->notes(), ::testing::Not(has_changed));
  }
}

TEST(Resume, RefusesAnotherRunsDirectory) {
  const TempDir dir;
  v1::JobSpec job = Saving(Over(TestJob(), kParams, 2), dir.path());
  EXPECT_FALSE(Outcome(job, "job-1", 5).ok());
  const absl::Status status = Outcome(job, "job-2");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(), HasSubstr("iter_0000003 belongs to another run"));
  job.mutable_checkpoint()->set_load(dir.path());
  EXPECT_EQ(RunAs(job, "job-2").restored->step(), 3);
  // The first start with one directory as both load and dir is fresh.
  job.mutable_checkpoint()->set_load(dir.File("new"));
  job.mutable_checkpoint()->set_dir(dir.File("new"));
  EXPECT_FALSE(RunAs(job, "job-3").restored.has_value());
}

TEST(Resume, SkipsDamagedCheckpoints) {
  const v1::JobSpec job = Over(TestJob(), kParams, 2);
  const LocalJobResult whole = Train(job);
  for (const char* file : {"__0_0.distcp", "__1_0.distcp", ".metadata"}) {
    SCOPED_TRACE(file);
    const TempDir dir;
    RunAs(Saving(job, dir.path()), "job-1");
    const std::string newest = CheckpointPath(dir.path(), 6);
    FlipByte(newest + "/" + file, static_cast<std::streamoff>(fs::file_size(newest + "/" + file) / 2));
    const LocalJobResult resumed = RunAs(Saving(job, dir.path()), "job-1");
    ExpectContinues(whole, resumed, 0);
    EXPECT_THAT(resumed.restored->skipped_checkpoints(), ElementsAre(HasSubstr("iter_0000006: ")));
    EXPECT_THAT(StepsIn(dir.path()), ElementsAre(6, 3));  // Written again,
    EXPECT_TRUE(fs::exists(newest + ".damaged"));         // and nothing is lost.
  }
}

TEST(Resume, FailsIfAllAreDamaged) {
  const TempDir dir;
  const v1::JobSpec job = Saving(Over(TestJob(), kParams, 2), dir.path());
  RunAs(job, "job-1");
  for (const int64_t step : {3, 6}) FlipByte(CheckpointPath(dir.path(), step) + "/__1_0.distcp", 2000);
  const absl::Status status = Outcome(job, "job-1");
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(status.message(), HasSubstr("iter_0000006: __1_0.distcp"));
  EXPECT_THAT(status.message(), HasSubstr("iter_0000003: __1_0.distcp"));
}

TEST(Resume, RefusesAnotherModel) {
  const TempDir dir;
  RunAs(Saving(Over(TestJob(), kParams, 2), dir.path()), "job-1");
  v1::JobSpec other = Over(TestJob(), kParams, 2);
  other.mutable_model()->mutable_llama()->set_layers(3);
  other.mutable_model()->mutable_llama()->set_vocab_size(38);
  const absl::Status status = Outcome(Loading(other, dir.path()), "job-2");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(),
              HasSubstr("model.module.embedding.weight: wrong shape (got [37, 20], want [38, 20])"));
  EXPECT_THAT(status.message(), HasSubstr("model.module.layer.2.attention.wq: is missing"));
  v1::JobSpec shorter = Over(TestJob(), kParams, 2);
  shorter.mutable_train()->set_steps(5);
  EXPECT_THAT(Outcome(Loading(shorter, dir.path()), "job-2").message(),
              HasSubstr("is at step 6 and train.steps is 5: no steps left"));
}

TEST(Resume, ReportsAMissingCheckpoint) {
  const TempDir dir;
  const absl::Status status = Outcome(Loading(Over(TestJob(), kParams, 2), dir.File("none")), "job-1");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(status.message(), HasSubstr("checkpoint.load: no checkpoint at " + dir.File("none")));
}

TEST(Resume, ContinuesAfterAFailedSave) {
  const TempDir dir;
  std::ofstream(CheckpointPath(dir.path(), 3)) << "a file where a directory should be";
  const v1::JobSpec job = Saving(Over(TestJob(), kParams, 2), dir.path());
  const LocalJobResult result = RunAs(job, "job-1");
  ASSERT_THAT(result.saved, SizeIs(2));
  EXPECT_THAT(result.saved[0].error(), HasSubstr("iter_0000003"));
  EXPECT_EQ(result.saved[0].bytes(), 0);
  EXPECT_EQ(result.saved[1].error(), "");
  EXPECT_THAT(StepsIn(dir.path()), ElementsAre(6));
}

TEST(Resume, FailsIfTheLastCheckpointFails) {
  const TempDir dir;
  std::ofstream(CheckpointPath(dir.path(), 6)) << "a file where a directory should be";
  const absl::Status status = Outcome(Saving(Over(TestJob(), kParams, 2), dir.path()), "job-1");
  EXPECT_THAT(status.message(), HasSubstr("the checkpoint of the last step was not written"));
  EXPECT_THAT(StepsIn(dir.path()), ElementsAre(3));
}

// Only one rank's file fails: the others remove theirs, and existing checkpoints stay.
TEST(Resume, RemovesAFailedCheckpoint) {
  const TempDir dir;
  const std::string path = CheckpointPath(dir.path(), 4);
  fs::create_directories(path + "/__1_0.distcp");  // In the place of a file.
  v1::JobSpec job = Saving(Over(TestJob(), kParams, 3), dir.path());
  job.mutable_checkpoint()->set_every_steps(4);
  job.mutable_checkpoint()->set_on_end(false);
  const LocalJobResult result = RunAs(job, "job-1");
  EXPECT_THAT(result.reports[0], SizeIs(6));
  ASSERT_THAT(result.saved, SizeIs(1));
  EXPECT_THAT(result.saved[0].error(), HasSubstr("rank 1: rename "));
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(path)) left.push_back(entry.path().filename().string());
  EXPECT_THAT(left, ElementsAre("__1_0.distcp"));
}

// Each snapshot is taken while the previous one may still be written and the next step is already submitted.
TEST(Resume, FromEveryStepOfARunAheadRun) {
  const TempDir dir;
  v1::JobSpec job = Over(TestJob(), kParams, 2);
  LocalJobOptions ahead;
  ahead.run_ahead_on_cpu = true;
  v1::JobSpec saving = Saving(job, dir.path());
  saving.mutable_checkpoint()->set_every_steps(1);
  saving.mutable_checkpoint()->set_keep_last(6);
  const LocalJobResult whole = Train(saving, ahead);
  for (const int64_t step : {1, 2, 3, 4, 5}) {
    SCOPED_TRACE(step);
    const LocalJobResult resumed = Train(Loading(job, CheckpointPath(dir.path(), step)));
    EXPECT_THAT(resumed.reports[0], SizeIs(6 - step));
    EXPECT_EQ(resumed.weights, whole.weights);
  }
}

TEST(Resume, ReplacesIncompleteFiles) {
  const TempDir dir;
  const std::string half = CheckpointPath(dir.path(), 3);
  fs::create_directories(half);
  std::ofstream(half + "/__0_0.distcp") << "of an attempt that was killed";
  std::ofstream(half + "/__1_0.distcp.abc.part") << "likewise";
  const v1::JobSpec job = Over(TestJob(), kParams, 2);
  const LocalJobResult whole = Train(Saving(job, dir.path()));
  EXPECT_FALSE(fs::exists(half + "/__1_0.distcp.abc.part"));
  ExpectContinues(whole, Train(Loading(job, half)), 0);
}

// Regression: it chose before it had locked the directory, and then could not write the step that existed.
TEST(Resume, WaitsForAnEarlierAttemptsCommit) {
  const TempDir dir;
  v1::JobSpec job = Saving(Over(TestJob(), kParams, 2), dir.path());
  job.mutable_checkpoint()->set_every_steps(3);
  RunAs(job, "job-1");
  const std::string newest = CheckpointPath(dir.path(), 6) + "/.metadata";
  fs::rename(newest, newest + ".later");
  LocalStore store;
  const std::atomic<bool> stop{false};
  absl::StatusOr<std::unique_ptr<DirectoryLock>> before =
      DirectoryLock::Take({dir.path(), "job-1", /*rank=*/0, &store, &stop});
  ASSERT_TRUE(before.ok()) << before.status();
  job.mutable_train()->set_steps(9);
  std::optional<LocalJobResult> resumed;
  std::thread next([&] { resumed = RunAs(job, "job-1"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  fs::rename(newest + ".later", newest);
  before->reset();
  next.join();
  ASSERT_TRUE(resumed->restored.has_value());
  EXPECT_EQ(resumed->restored->step(), 6);
  EXPECT_THAT(StepsIn(dir.path()), ElementsAre(9, 6, 3));
}

TEST(Resume, RefusesADirectoryItCannotCreate) {
  const TempDir dir;
  std::ofstream(dir.File("file")) << "";
  const absl::Status status =
      Outcome(Saving(Over(TestJob(), kParams, 2), dir.File("file") + "/runs"), "job-1");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("checkpoint.dir: "));
}

}  // namespace
}  // namespace fsdpd
