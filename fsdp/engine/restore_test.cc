// Reading checkpoints into a rank, and refusals. resume_test.cc covers resumed training, and tests/parity
// compares it with PyTorch.
#include "fsdp/engine/restore.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/temp_dir.h"
#include "fsdp/checkpoint/dcp/dcp_writer.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/job/job_file.h"
#include "fsdp/checkpoint/names/tensor_names.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"
#include "fsdp/engine/error_cause.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// TestJob's model as a spec inside a checkpoint.
constexpr char kSpec[] = R"({"model": {"llama": {"vocab_size": 37, "hidden_size": 20, "intermediate_size": 36,
    "layers": 2, "heads": 2, "kv_heads": 1}}, "data": {"synthetic": {}, "sequence_length": 8},
    "train": {"seed": 5}})";

Plan PlanOf(const v1::JobSpec& job) {
  auto plan = AcceptedPlan(job);
  FSDPD_CHECK_OK(plan.status());
  return *std::move(plan);
}

v1::JobSpec Changed(const std::function<void(v1::JobSpec*)>& change) {
  v1::JobSpec job = TestJob();
  job.mutable_checkpoint()->set_load("/set/by/the/caller");
  change(&job);
  return job;
}

const Plan& TestPlan() {
  static const auto* plan = new Plan(PlanOf(Changed([](v1::JobSpec*) {})));
  return *plan;
}

// Writes the checkpoint of a job after `state`, with constant tensors.
void WriteNative(const std::string& directory, const v1::JobSpec& job, TrainingState state,
                 const std::string& spec = "", float number = 0.25f) {
  const Plan plan = PlanOf(job);
  const JobFile file =
      JobFileOf(plan.spec, plan.layout, plan.layout, {plan.spec.mesh, 0}, state, {"another-job", spec});
  const auto writer = DcpWriter::Create(directory, file.file);
  FSDPD_CHECK_OK(writer.status());
  const std::vector<float> numbers(1 << 16, number);
  for (size_t piece = 0; piece < file.runs.size(); ++piece)
    FSDPD_CHECK_OK((*writer)->Write(piece, numbers.data()));
  const auto sum = (*writer)->Finish();
  FSDPD_CHECK_OK(sum.status());
  FSDPD_CHECK_OK(CommitDcp(directory, {&file.file}, {*sum}));
}

constexpr char kConfig[] = R"({"model_type": "llama", "hidden_size": 20, "intermediate_size": 36,
  "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2, "vocab_size": 37,
  "rms_norm_eps": 1e-5})";

// In the format of transformers: each parameter is 0, 1, 2 ...
std::vector<TestTensor> Theirs(const ModelConfig& model) {
  std::vector<TestTensor> tensors;
  for (const NamedParam& param : ParamsOf(model, Naming::kTransformers)) {
    tensors.push_back(MakeTestTensor(param.theirs, "float32", param.shape));
    auto* numbers = reinterpret_cast<float*>(tensors.back().numbers.data());
    std::iota(numbers, numbers + tensors.back().numbers.size() / sizeof(float), 0.f);
  }
  return tensors;
}

void WriteHf(const std::string& directory, const std::vector<TestTensor>& tensors,
             const std::string& config = kConfig) {
  std::vector<StoredTensor> stored;
  for (const TestTensor& tensor : tensors) {
    stored.push_back({tensor.name, tensor.type, tensor.shape, static_cast<int64_t>(tensor.numbers.size())});
  }
  const auto writer = MakeHfWriter(directory, stored, 1 << 20, config);
  FSDPD_CHECK_OK(writer.status());
  for (size_t i = 0; i < tensors.size(); ++i) FSDPD_CHECK_OK((*writer)->Write(i, tensors[i].numbers.data()));
  FSDPD_CHECK_OK((*writer)->Finish());
}

std::string Error(const Plan& plan, const std::string& path, bool own = false) {
  const auto restore = Restore::Open(plan, path, own);
  if (restore.ok()) return "it was opened";
  EXPECT_EQ(restore.status().code(), absl::StatusCode::kFailedPrecondition) << restore.status();
  return std::string(restore.status().message());
}

TEST(Restore, ReadsTheWholeState) {
  const TempDir dir;
  WriteNative(dir.path(), TestJob(), {3, 36, 2, 1, 0}, kSpec);
  const auto restore = Restore::Open(TestPlan(), dir.path(), /*own=*/false);
  ASSERT_TRUE(restore.ok()) << restore.status();
  EXPECT_EQ((*restore)->state().step, 3);
  EXPECT_EQ((*restore)->state().samples, 36);
  EXPECT_EQ((*restore)->state().steps_taken, 2);
  EXPECT_THAT((*restore)->notes(), IsEmpty());
  const at::Tensor numbers = (*restore)->Initial()(0, 0, 5, 3);
  EXPECT_EQ(std::vector<float>(numbers.const_data_ptr<float>(), numbers.const_data_ptr<float>() + 3),
            std::vector<float>(3, 0.25f));
}

TEST(Restore, ReadsHuggingFaceParameters) {
  const TempDir dir;
  WriteHf(dir.path(), Theirs(TestPlan().spec.model));
  const auto restore = Restore::Open(TestPlan(), dir.path(), /*own=*/false);
  ASSERT_TRUE(restore.ok()) << restore.status();
  EXPECT_EQ((*restore)->state().step, 0);
  EXPECT_THAT((*restore)->notes(), IsEmpty());
  const at::Tensor numbers = (*restore)->Initial()(1, 1, 15, 4);  // Begins within a row.
  EXPECT_EQ(std::vector<float>(numbers.const_data_ptr<float>(), numbers.const_data_ptr<float>() + 4),
            (std::vector<float>{15, 16, 17, 18}));
}

// Regression test: the first step failed with advice to lower the learning rate.
TEST(Restore, NotesNumbersThatAreNotFinite) {
  for (const float number :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const TempDir damaged;
    std::vector<TestTensor> tensors = Theirs(TestPlan().spec.model);
    reinterpret_cast<float*>(tensors[1].numbers.data())[7] = number;
    WriteHf(damaged.path(), tensors);
    const auto restore = Restore::Open(TestPlan(), damaged.path(), /*own=*/false);
    ASSERT_TRUE(restore.ok()) << restore.status();
    (*restore)->Initial()(1, 0, 0, 7);
    EXPECT_THAT((*restore)->notes(), IsEmpty());
    (*restore)->Initial()(1, 0, 5, 3);
    EXPECT_THAT((*restore)->notes(), ElementsAre("layer.0.attention_norm contains NaN or infinite numbers"));
  }
}

TEST(Restore, NamesAMissingPeftConfig) {
  const TempDir dir;
  std::ofstream(dir.File("adapter_model.safetensors")) << "x";
  const Plan lora =
      PlanOf(Changed([](v1::JobSpec* job) { job->mutable_train()->mutable_lora()->set_rank(2); }));
  EXPECT_EQ(Error(lora, dir.path()), dir.File("adapter_config.json") +
                                         ": file does not exist; copy it from where PEFT saved "
                                         "adapter_model.safetensors");
}

TEST(Restore, NotesAMissingHuggingFaceConfig) {
  const TempDir dir;
  WriteHf(dir.path(), Theirs(TestPlan().spec.model));
  ASSERT_EQ(unlink(dir.File("config.json").c_str()), 0);
  const auto restore = Restore::Open(TestPlan(), dir.path(), /*own=*/false);
  ASSERT_TRUE(restore.ok()) << restore.status();
  EXPECT_THAT((*restore)->notes(), ElementsAre(HasSubstr("it has no config.json")));
}

// An FSDP2 checkpoint has optimizer state next to the model, with foreign names.
TEST(Restore, ReadsParametersOfForeignDcp) {
  const TempDir dir;
  std::vector<TestTensor> tensors;
  for (TestTensor tensor : Theirs(TestPlan().spec.model)) {
    tensor.name = absl::StrCat("app.", tensor.name);
    tensors.push_back(tensor);
  }
  for (const char* name : {"a", "b", "c", "d", "e"})
    tensors.push_back(MakeTestTensor(absl::StrCat("optimizer.", name), "float32", {2}));
  ASSERT_TRUE(CommitTestFiles(dir.path(), WriteTestFiles(dir.path(), tensors, 2)).ok());
  const auto restore = Restore::Open(TestPlan(), dir.path(), /*own=*/false);
  ASSERT_TRUE(restore.ok()) << restore.status();
  EXPECT_EQ((*restore)->state().step, 0);
  EXPECT_THAT((*restore)->notes(),
              ElementsAre(HasSubstr("no config.json"),
                          "ignored tensors that are not parameters of the model: optimizer.a, optimizer.b, "
                          "optimizer.c and 2 more"));
}

TEST(Restore, RefusesResumeFromParametersOnly) {
  const TempDir dir;
  WriteHf(dir.path(), Theirs(TestPlan().spec.model));
  const Plan asks = PlanOf(Changed([](auto* job) { job->mutable_checkpoint()->set_load_optimizer(true); }));
  EXPECT_THAT(Error(asks, dir.path()), HasSubstr("checkpoint.load_optimizer: true is not supported"));
}

TEST(Restore, ListsDifferencesUpToALimit) {
  const TempDir native, hf;
  WriteNative(native.path(), TestJob(), {3, 36, 3, 1, 0});
  std::vector<TestTensor> theirs = Theirs(TestPlan().spec.model);
  theirs[1] = MakeTestTensor(theirs[1].name, "float32", {4});
  theirs[2].name = "model.layers.0.other.weight";
  WriteHf(hf.path(), theirs);
  const std::vector<std::string> lines = absl::StrSplit(Error(TestPlan(), hf.path()), '\n');
  EXPECT_THAT(lines,
              ElementsAre(absl::StrCat("the checkpoint ", hf.path(), " does not match this job's model:"),
                          "  model.layers.0.input_layernorm.weight: wrong shape (got [4], want [20])",
                          "  model.layers.0.self_attn.q_proj.weight: is missing",
                          "  model.layers.0.other.weight: is not in the model"));
  const Plan deep = PlanOf(Changed([](auto* job) { job->mutable_model()->mutable_llama()->set_layers(9); }));
  const std::vector<std::string> many = absl::StrSplit(Error(deep, native.path()), '\n');
  ASSERT_THAT(many, SizeIs(52));
  EXPECT_EQ(many[1], "  model.module.layer.2.attention_norm: is missing");
  EXPECT_EQ(many[51], "  and 139 more");  // 7 layers of 9 parameters with two moments; 50 are listed.
}

TEST(Restore, RefusesADifferentModelOfTheSameShapes) {
  const TempDir native, hf;
  WriteNative(native.path(), TestJob(), {3, 36, 3, 1, 0}, kSpec);
  WriteHf(hf.path(), Theirs(TestPlan().spec.model));
  const Plan other = PlanOf(Changed([](v1::JobSpec* job) {
    job->mutable_model()->mutable_llama()->set_rope_theta(500000);
    job->mutable_model()->mutable_llama()->set_norm_epsilon(1e-6);
  }));
  EXPECT_THAT(Error(other, native.path()),
              AllOf(HasSubstr("\n  rope_theta: 10000 there, and 500000 in this job\n"),
                    HasSubstr("\n  norm_epsilon: 1e-05 there, and 1e-06 in this job")));
  EXPECT_THAT(
      Error(other, hf.path()),
      AllOf(HasSubstr("\n  config.json: rope_theta: 10000 there, and 500000 in this job\n"),
            HasSubstr("\n  config.json: norm_epsilon: 1e-05 there, and 1e-06 in this job\n"),
            HasSubstr(absl::StrCat("\n  set `model: {hf_config: ", hf.path(), "/config.json}` in "))));
}

TEST(Restore, NotesChangedSettings) {
  const TempDir dir;
  WriteNative(dir.path(), TestJob(), {3, 36, 3, 1, 0}, kSpec);
  v1::JobSpec job = Changed([](v1::JobSpec* changed) {
    changed->mutable_train()->set_seed(6);
    changed->mutable_optimizer()->clear_adamw();
    changed->mutable_optimizer()->mutable_sgd()->set_lr(0.1);
  });
  const Plan plan = PlanOf(job);
  const auto restore = Restore::Open(plan, dir.path(), /*own=*/false);
  ASSERT_TRUE(restore.ok()) << restore.status();
  EXPECT_EQ((*restore)->state().step, 3);
  EXPECT_THAT((*restore)->notes(),
              ElementsAre("train.seed: 5 there, and 6 here", "optimizer: adamw there, and sgd here",
                          "ignored state that this job's optimizer does not have: exp_avg, exp_avg_sq"));
  // With parameters only, another run is what was requested.
  job.mutable_checkpoint()->set_load_optimizer(false);
  const Plan parameters = PlanOf(job);
  const auto fresh = Restore::Open(parameters, dir.path(), /*own=*/false);
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_EQ((*fresh)->state().step, 0);
  EXPECT_THAT((*fresh)->notes(), IsEmpty());
}

TEST(Restore, ReadsParametersWithoutAStep) {
  const TempDir dir;
  std::vector<TestTensor> tensors;
  for (const NamedParam& param : ParamsOf(TestPlan().spec.model, Naming::kOurs))
    tensors.push_back(MakeTestTensor(absl::StrCat("model.module.", param.ours), "float32", param.shape));
  std::vector<DcpPiece> pieces;
  for (const TestTensor& tensor : tensors) {
    for (DcpPiece& piece : PiecesOfRun(tensor.name, tensor.type, tensor.shape, 0,
                                       static_cast<int64_t>(tensor.numbers.size() / sizeof(float))))
      pieces.push_back(std::move(piece));
  }
  const DcpFile file = LayOut(DcpFileName(0), pieces);
  const auto writer = DcpWriter::Create(dir.path(), file);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (size_t i = 0; i < tensors.size(); ++i)
    ASSERT_TRUE((*writer)->Write(i, tensors[i].numbers.data()).ok());
  ASSERT_TRUE(CommitDcp(dir.path(), {&file}, {*(*writer)->Finish()}).ok());
  const auto restore = Restore::Open(TestPlan(), dir.path(), /*own=*/false);
  ASSERT_TRUE(restore.ok()) << restore.status();
  EXPECT_EQ((*restore)->state().step, 0);
  const Plan asks = PlanOf(Changed([](auto* job) { job->mutable_checkpoint()->set_load_optimizer(true); }));
  EXPECT_THAT(Error(asks, dir.path()), HasSubstr("no step number (iteration)"));
}

TEST(Restore, RefusesAFinishedRunUnlessOwn) {
  for (const int64_t step : {6, 7}) {
    const TempDir dir;
    WriteNative(dir.path(), TestJob(), {step, 12 * step, step, 1, 0}, kSpec);
    EXPECT_THAT(Error(TestPlan(), dir.path()),
                HasSubstr(absl::StrCat(" is at step ", step, " and train.steps is 6: no steps left")));
    const auto own = Restore::Open(TestPlan(), dir.path(), /*own=*/true);
    EXPECT_EQ(own.ok(), step == 6) << own.status();
    if (step > 6) {
      EXPECT_THAT(own.status().message(), HasSubstr("is at step 7, beyond train.steps (6)"));
    }
  }
}

TEST(Restore, InitializesAMissingLossScale) {
  const TempDir fp32, fp16;
  const v1::JobSpec scales =
      Changed([](v1::JobSpec* job) { job->mutable_precision()->set_compute(v1::DTYPE_FP16); });
  WriteNative(fp32.path(), TestJob(), {3, 36, 3, 1, 17});
  WriteNative(fp16.path(), scales, {3, 36, 3, 512, 17});
  const Plan plan = PlanOf(scales);
  const auto of_fp32 = Restore::Open(plan, fp32.path(), false),
             of_fp16 = Restore::Open(plan, fp16.path(), false);
  ASSERT_TRUE(of_fp32.ok() && of_fp16.ok()) << of_fp32.status() << of_fp16.status();
  EXPECT_EQ((*of_fp32)->state().loss_scale, 65536);
  EXPECT_EQ((*of_fp32)->state().good_steps, 0);
  EXPECT_EQ((*of_fp16)->state().loss_scale, 512);
  EXPECT_EQ((*of_fp16)->state().good_steps, 17);
  const auto unscaled = Restore::Open(TestPlan(), fp16.path(), false);
  ASSERT_TRUE(unscaled.ok()) << unscaled.status();
  EXPECT_EQ((*unscaled)->state().loss_scale, 1);
  EXPECT_EQ((*unscaled)->state().good_steps, 0);
}

// An I/O error or invalid bytes must fail the job, rather than train from zeros.
TEST(Restore, ReturnsTheFirstReadError) {
  const TempDir dir;
  WriteHf(dir.path(), Theirs(TestPlan().spec.model));
  const auto restore = Restore::Open(TestPlan(), dir.path(), /*own=*/false);
  ASSERT_TRUE(restore.ok()) << restore.status();
  ASSERT_EQ(truncate(dir.File("model.safetensors").c_str(), 5000), 0);
  const auto params = ShardedParams::Make(TestPlan().spec, TestPlan().layout, {TestPlan().spec.mesh, 0},
                                          at::kCPU, (*restore)->Initial());
  ASSERT_TRUE(params.ok()) << params.status();
  const absl::Status status = (*restore)->Finish({TestPlan().spec.mesh, 0}, *params);
  EXPECT_THAT(status.message(), HasSubstr("model.safetensors"));
  EXPECT_FALSE(status.ok());
}

// They were trained without the clipping that 8-bit moments need.
TEST(Restore, RefusesMomentsBeyondFp8) {
  const Plan plan = PlanOf(Changed([](v1::JobSpec* job) {
    job->mutable_optimizer()->set_clip_norm(1);
    job->mutable_precision()->set_moments(v1::DTYPE_FP8);
  }));
  for (const float number : {0.25f, 7.5f, std::numeric_limits<float>::quiet_NaN()}) {
    SCOPED_TRACE(number);
    const TempDir dir;
    WriteNative(dir.path(), TestJob(), {3, 36, 2, 1, 0}, kSpec, number);
    const auto restore = Restore::Open(plan, dir.path(), /*own=*/false);
    ASSERT_TRUE(restore.ok()) << restore.status();
    const MeshPosition position = {plan.spec.mesh, 0};
    const auto params =
        ShardedParams::Make(plan.spec, plan.layout, position, at::kCPU, (*restore)->Initial());
    ASSERT_TRUE(params.ok()) << params.status();
    const absl::Status status = (*restore)->Finish(position, *params);
    EXPECT_EQ(status.ok(), number == 0.25f) << status;
    if (status.ok()) continue;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(number == 7.5f ? "exp_avg has values beyond 7, the maximum" : "contains NaN"));
    ASSERT_TRUE(CauseOf(status).has_value());
    EXPECT_EQ(CauseOf(status)->kind(), v1::ErrorClass::KIND_CONFIGURATION);
    EXPECT_TRUE(CauseOf(status)->permanent());
  }
}

}  // namespace
}  // namespace fsdpd
