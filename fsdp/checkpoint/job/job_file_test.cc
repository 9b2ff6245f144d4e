#include "fsdp/checkpoint/job/job_file.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "base/check.h"
#include "base/temp_dir.h"
#include "fsdp/checkpoint/dcp/dcp_writer.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Plan PlanOf(int world, const std::string& fsdp, const std::string& more = "") {
  v1::JobSpec job;
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      absl::StrCat(R"({"name": "test", "data": {"synthetic": {}, "sequence_length": 8},
                       "model": {"llama": {"vocab_size": 37, "hidden_size": 20, "intermediate_size": 36,
                                           "layers": 2, "heads": 2, "kv_heads": 1}},
                       "train": {"steps": 6, "global_batch": 12, "seed": 5},
                       "checkpoint": {"dir": "/runs/1", "every_steps": 3},
                       "resources": {"ranks_per_node": )",
                   world, R"(, "device": "DEVICE_CPU"}, "fsdp": )", fsdp, more, "}"),
      &job);
  FSDPD_CHECK(parsed.ok());
  auto plan = AcceptedPlan(job);
  FSDPD_CHECK_OK(plan.status());
  return *std::move(plan);
}

const TrainingState kState = {3, 36, 2, 512.0, 1};

std::vector<JobFile> FilesOf(const Plan& plan) {
  std::vector<JobFile> files;
  for (int64_t rank = 0; rank < plan.spec.mesh.world(); ++rank) {
    files.push_back(JobFileOf(plan.spec, plan.StageOf(rank).layout, plan.full_layout(),
                              {plan.spec.mesh, rank}, kState, {"test-1", "{}"}));
  }
  return files;
}

DcpIndex IndexOfFiles(const std::vector<JobFile>& files) {
  std::vector<const DcpFile*> layouts;
  for (const JobFile& file : files) {
    if (!file.empty()) layouts.push_back(&file.file);
  }
  auto index = IndexOf(layouts);
  FSDPD_CHECK_OK(index.status());
  return *std::move(index);
}

TEST(JobFile, FilesHoldEveryElementOnce) {
  for (
      const char* fsdp :
      {R"({"strategy": "STRATEGY_NO_SHARD"})", R"({"strategy": "STRATEGY_OPTIM_GRADS_PARAMS"})",
       R"({"strategy": "STRATEGY_OPTIM_GRADS_PARAMS", "outer": {"size": 2}})",
       R"({"strategy": "STRATEGY_OPTIM_GRADS_PARAMS", "outer": {"size": 2, "strategy": "STRATEGY_OPTIM"}})"}) {
    SCOPED_TRACE(fsdp);
    const Plan plan = PlanOf(4, fsdp);
    const DcpIndex index = IndexOfFiles(FilesOf(plan));
    EXPECT_TRUE(CheckIndex(index).empty()) << CheckIndex(index)[0].where << " " << CheckIndex(index)[0].what;
    EXPECT_THAT(DifferencesOf(plan.spec, plan.layout, index, LoadedPart::kTraining), IsEmpty());
  }
}

// Step counts and rank 0's values cover the parameters of all stages.
TEST(JobFile, StagesWriteSameEntriesAsSingleRank) {
  const auto names = [](const Plan& plan) {
    std::set<std::string> all;
    const DcpIndex index = IndexOfFiles(FilesOf(plan));
    for (const DcpTensor& tensor : index.tensors) all.insert(tensor.name);
    for (const DcpValue& value : index.values) all.insert(value.name);
    return all;
  };
  EXPECT_EQ(names(PlanOf(4, "{}", R"(, "parallel": {"pipeline": 2})")), names(PlanOf(1, "{}")));
}

TEST(JobFile, UsesMegatronFsdpNames) {
  const Plan plan = PlanOf(2, "{}", R"(, "precision": {"moments": "DTYPE_BF16"})");
  std::map<std::string, std::string> types;
  for (const DcpTensor& tensor : IndexOfFiles(FilesOf(plan)).tensors) {
    types[tensor.name] = tensor.type_name + " " + ShapeText(tensor.shape);
  }
  EXPECT_EQ(types["model.module.layer.1.attention.wq"], "float32 [20, 20]");
  EXPECT_EQ(types["optimizer.state.module.module.module.layer.1.attention.wq.exp_avg"], "bfloat16 [20, 20]");
  EXPECT_EQ(types["optimizer.state.module.module.module.layer.1.attention.wq.exp_avg_sq"],
            "bfloat16 [20, 20]");
  EXPECT_EQ(types["optimizer.state.module.module.module.layer.1.attention.wq.step"], "float32 []");
}

TEST(JobFile, FrozenParametersHaveNoOptimizerState) {
  const Plan plan = PlanOf(2, "{}", R"(, "optimizer": {"sgd": {"lr": 0.1, "momentum": 0.9}})");
  v1::JobSpec frozen = plan.resolved;
  frozen.mutable_train()->add_frozen("layer.0.*");
  const auto other = AcceptedPlan(frozen);
  ASSERT_TRUE(other.ok()) << other.status();
  std::set<std::string> names;
  for (const DcpTensor& tensor : IndexOfFiles(FilesOf(*other)).tensors) names.insert(tensor.name);
  EXPECT_THAT(names, Contains("model.module.layer.0.attention.wq"));
  EXPECT_THAT(names, Contains("optimizer.state.module.module.module.layer.1.attention.wq.momentum_buffer"));
  EXPECT_THAT(names, ::testing::Not(Contains(HasSubstr("module.module.module.layer.0."))));
  // A parameter that was frozen lacks state that is needed now; one that is frozen now may have state.
  EXPECT_THAT(
      DifferencesOf(plan.spec, plan.layout, IndexOfFiles(FilesOf(*other)), LoadedPart::kTraining),
      Contains("optimizer.state.module.module.module.layer.0.attention.wq.momentum_buffer: is missing"));
  EXPECT_THAT(DifferencesOf(other->spec, other->layout, IndexOfFiles(FilesOf(plan)), LoadedPart::kTraining),
              IsEmpty());
}

TEST(JobFile, ReportsAllDifferences) {
  const Plan plan = PlanOf(1, "{}");
  DcpIndex index = IndexOfFiles(FilesOf(plan));
  std::map<std::string, DcpTensor*> named;
  for (DcpTensor& tensor : index.tensors) named[tensor.name] = &tensor;
  named["model.module.layer.0.attention.wq"]->name = "model.module.layer.9.attention.wq\n";
  named["model.module.layer.1.attention.wq"]->shape = {10, 40};
  named["model.module.layer.1.attention.wk"]->type = FindTensorType("int64");
  named["model.module.layer.1.attention.wk"]->type_name = "int64";
  EXPECT_THAT(
      DifferencesOf(plan.spec, plan.layout, index, LoadedPart::kTraining),
      ElementsAre("model.module.layer.0.attention.wq: is missing",
                  "model.module.layer.1.attention.wq: wrong shape (got [10, 40], want [20, 20])",
                  "model.module.layer.1.attention.wk: wrong dtype (got int64, want a floating-point type)",
                  "model.module.layer.9.attention.wq\\n: is not in the job's model"));
}

TEST(JobFile, NamesUnreadStateOfOtherOptimizer) {
  const Plan adamw = PlanOf(1, "{}"), sgd = PlanOf(1, "{}", R"(, "optimizer": {"sgd": {"lr": 1}})"),
             momentum = PlanOf(1, "{}", R"(, "optimizer": {"sgd": {"lr": 1, "momentum": 0.9}})");
  const DcpIndex index = IndexOfFiles(FilesOf(adamw));
  EXPECT_THAT(UnreadState(adamw.spec, index), IsEmpty());
  EXPECT_THAT(UnreadState(sgd.spec, index), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(UnreadState(sgd.spec, IndexOfFiles(FilesOf(momentum))), ElementsAre("momentum_buffer"));
}

// Writes a checkpoint of zeros.
absl::Status Write(const std::string& directory, const std::vector<JobFile>& files) {
  const std::string zeros(1 << 20, '\0');
  std::vector<const DcpFile*> layouts;
  std::vector<DcpSum> sums;
  for (const JobFile& file : files) {
    FSDPD_ASSIGN_OR_RETURN(const auto writer, DcpWriter::Create(directory, file.file));
    for (size_t piece = 0; piece < file.runs.size(); ++piece) {
      FSDPD_RETURN_IF_ERROR(writer->Write(piece, zeros.data()));
    }
    FSDPD_ASSIGN_OR_RETURN(const DcpSum sum, writer->Finish());
    layouts.push_back(&file.file);
    sums.push_back(sum);
  }
  return CommitDcp(directory, layouts, sums);
}

// Rank 0 of a job with this layout; `reads`: the spec that resumes from it.
absl::StatusOr<TrainingState> WrittenAndRead(const Spec& spec, const Layout& layout,
                                             const TrainingState& state, const Spec& reads) {
  const TempDir dir;
  FSDPD_RETURN_IF_ERROR(
      Write(dir.path(), {JobFileOf(spec, layout, layout, {spec.mesh, 0}, state, {"test-1", "{}"})}));
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<DcpReader> reader, DcpReader::Open(dir.path()));
  return ReadState(*reader, reads);
}

TEST(JobFile, RoundTripsState) {
  const TempDir dir;
  const Plan plan = PlanOf(2, "{}");
  ASSERT_TRUE(Write(dir.path(), FilesOf(plan)).ok());
  const auto reader = DcpReader::Open(dir.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto state = ReadState(**reader, plan.spec);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->step, 3);
  EXPECT_EQ(state->samples, 36);
  EXPECT_EQ(state->steps_taken, 2);
  EXPECT_EQ(state->good_steps, 0);
  EXPECT_EQ(state->loss_scale, 1);  // No loss scale in fp32.
  Spec fp16 = plan.spec;
  fp16.precision.compute = DType::kFp16;
  EXPECT_EQ(ReadState(**reader, fp16)->loss_scale, 512);  // Restored for fp16.
  EXPECT_EQ(ReadState(**reader, fp16)->good_steps, 1);
  EXPECT_EQ(*ReadJobId(**reader), "test-1");
  EXPECT_EQ(*ReadJobSpec(**reader), "{}");
}

// A scale that has decreased to 1 or below counts too, if the job used one.
TEST(JobFile, RestoresLossScaleIfCheckpointHasOne) {
  const Plan plan = PlanOf(1, "{}");
  Spec fp16 = plan.spec;
  fp16.precision.compute = DType::kFp16;
  for (const double scale : {0.25, 1.0, 65536.0}) {
    SCOPED_TRACE(scale);
    const TrainingState state = {3, 36, 2, scale, 7};
    const auto read = WrittenAndRead(fp16, plan.layout, state, fp16);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->loss_scale, scale);
    EXPECT_EQ(read->good_steps, 7);
  }
  const TrainingState none = {3, 36, 2, 1, 7};
  const auto of_fp32 = WrittenAndRead(plan.spec, plan.layout, none, fp16);
  ASSERT_TRUE(of_fp32.ok()) << of_fp32.status();
  EXPECT_EQ(of_fp32->loss_scale, fp16.loss_scale.initial);
  EXPECT_EQ(of_fp32->good_steps, 0);
}

TEST(JobFile, RoundTripsNormsAndSkippedSteps) {
  const Plan plan = PlanOf(1, "{}");
  TrainingState kept = {4, 48, 2, 1, 0};
  kept.grad_norms = {0.1f, std::nullopt, 3e38f, 0.0f};
  kept.skipped_nonfinite = {2};
  kept.skipped_spikes = {1, 3};
  const auto state = WrittenAndRead(plan.spec, plan.layout, kept, plan.spec);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->grad_norms, kept.grad_norms);
  EXPECT_EQ(state->skipped_nonfinite, kept.skipped_nonfinite);
  EXPECT_EQ(state->skipped_spikes, kept.skipped_spikes);
}

TEST(JobFile, RejectsInvalidLists) {
  const Plan plan = PlanOf(1, "{}");
  TrainingState negative = {3, 36, 2, 1, 0}, descending = negative, later = negative, infinite = negative,
                more = negative;
  negative.grad_norms = {-1.0f};
  infinite.grad_norms = {std::numeric_limits<float>::infinity()};
  descending.skipped_spikes = {3, 1};
  later.skipped_nonfinite = {4};
  more.grad_norms = {1.0f, std::nullopt, 1.0f, 1.0f};  // More than steps.
  for (const TrainingState& state : {negative, infinite, descending, later, more}) {
    const absl::Status status = WrittenAndRead(plan.spec, plan.layout, state, plan.spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(status.message(), HasSubstr("want a list of"));
  }
}

// They become positions in the data, which must not overflow.
TEST(JobFile, RejectsExcessiveCounts) {
  const Plan plan = PlanOf(1, "{}");
  for (const TrainingState& state : {TrainingState{int64_t{1} << 60, 0, 0, 1, 0},
                                     TrainingState{int64_t{1} << 47, 0, 0, 1, 0},  // Times 12 samples.
                                     TrainingState{3, std::numeric_limits<int64_t>::max(), 3, 1, 0}}) {
    const absl::Status status = WrittenAndRead(plan.spec, plan.layout, state, plan.spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  }
}

TEST(JobFile, DerivesStateOfOtherPrograms) {
  const TempDir dir;
  const Plan plan = PlanOf(1, "{}");
  std::vector<JobFile> files = FilesOf(plan);
  files[0] = {};
  const JobFile whole = FilesOf(plan)[0];
  std::vector<DcpSmall> iteration = {whole.file.values[0]};
  ASSERT_EQ(iteration[0].name, "iteration");
  files[0].file = LayOut(whole.file.name, whole.file.pieces, iteration);
  files[0].runs = whole.runs;
  ASSERT_TRUE(Write(dir.path(), files).ok());
  const auto reader = DcpReader::Open(dir.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto state = ReadState(**reader, plan.spec);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->step, 3);
  EXPECT_EQ(state->samples, 3 * 12);
  EXPECT_EQ(state->steps_taken, 3);
  EXPECT_EQ(*ReadJobId(**reader), "");
}

}  // namespace
}  // namespace fsdpd
