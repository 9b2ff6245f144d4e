// CUDA graphs: a job whose steps are launched as graphs is bit-identical to one whose steps are submitted
// instruction by instruction, through a learning-rate schedule, evaluations, checkpoints, skipped steps and a
// resume, each of which falls between two launches.
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>

#include "base/rank/trace_file.h"
#include "base/temp_dir.h"
#include "fsdp/engine/testing/test_job.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

// Of all ranks.
std::atomic<int>& Launches() {
  static auto* launches = new std::atomic<int>(0);
  return *launches;
}

struct Case {
  std::string name;
  v1::Strategy strategy;
  int micro_batches = 1;
  v1::DType compute = v1::DTYPE_BF16;
  bool tied = false;
  v1::Recompute recompute = v1::RECOMPUTE_NONE;
  bool experts = false;
  int among = 0;        // Top-k with expert parallelism of 2. 0: no expert parallelism.
  int64_t words = 512;  // Size of the synthetic vocabulary; a small one causes uneven routing.
};

std::string NameOf(const testing::TestParamInfo<Case>& info) { return info.param.name; }

// The first job of a process may choose other kernels than later ones.
class AfterTheFirst : public testing::Environment {
 public:
  void SetUp() override;
};
const auto* const kAfterTheFirst = testing::AddGlobalTestEnvironment(new AfterTheFirst);

int World() {
  const int gpus = c10::cuda::device_count();
  return gpus >= 4 ? 4 : gpus >= 2 ? 2 : 1;
}

// A file of samples for evaluations, kept until the process exits.
const std::string& TokenFilePath() {
  static const auto* dir = new TempDir;
  static const auto* path = [] {
    auto* made = new std::string(dir->File("validation.bin"));
    std::ofstream file(*made, std::ios::binary);
    for (int i = 0; i < 9000; ++i) {
      const auto token = static_cast<uint16_t>(i * i % 512);
      file.write(reinterpret_cast<const char*>(&token), sizeof token);
    }
    return made;
  }();
  return *path;
}

// 16 steps, with evaluations after 6, 12 and the last.
v1::JobSpec JobOf(const Case& of, bool graphs) {
  v1::JobSpec job = TestJob();
  auto* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(512);
  llama->set_hidden_size(256);
  llama->set_intermediate_size(512);
  llama->set_heads(4);
  llama->set_kv_heads(2);
  llama->set_tied_embeddings(of.tied);
  if (of.experts) {
    llama->mutable_experts()->set_count(8);
    llama->mutable_experts()->set_per_token(2);
    llama->mutable_experts()->set_intermediate_size(128);
    llama->mutable_experts()->set_balance_loss(0.01);
  }
  job.mutable_data()->set_sequence_length(128);
  job.mutable_data()->mutable_synthetic()->set_vocab(of.words);
  job.mutable_train()->set_steps(16);
  job.mutable_train()->set_global_batch(16);
  job.mutable_train()->mutable_evaluation()->set_every_steps(6);
  job.mutable_train()->mutable_evaluation()->set_samples(8);
  v1::TokenFile* file = job.mutable_data()->add_validation();
  file->set_path(TokenFilePath());
  file->set_type(v1::TOKEN_TYPE_U16);
  job.mutable_train()->set_graphs(graphs);
  job.mutable_optimizer()->set_clip_norm(1);
  job.mutable_schedule()->mutable_cosine()->set_warmup_steps(5);
  job.mutable_precision()->set_compute(of.compute);
  job.mutable_fsdp()->set_recompute(of.recompute);
  job.mutable_resources()->set_device(v1::DEVICE_CUDA);
  if (of.among > 0) llama->mutable_experts()->set_per_token(of.among);
  if (of.among > 0 && World() > 1) job.mutable_parallel()->set_expert(of.among > 1 ? 2 : World());
  return Over(job, {"", of.strategy}, World(), of.micro_batches);
}

void AfterTheFirst::SetUp() {
  if (c10::cuda::device_count() > 0) Train(JobOf({"", v1::STRATEGY_OPTIM_GRADS_PARAMS}, false));
}

void ExpectSameEvaluations(const LocalJobResult& expected, const LocalJobResult& actual) {
  for (size_t s = 0; s < expected.reports[0].size(); ++s) {
    EXPECT_EQ(expected.reports[0][s].evaluation().loss(), actual.reports[0][s].evaluation().loss()) << s + 1;
    EXPECT_EQ(expected.reports[0][s].learning_rate(), actual.reports[0][s].learning_rate()) << s + 1;
  }
}

class Graphs : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    if (GetParam().compute == v1::DTYPE_FP8 && !CheckMultipliesFp8(0).ok())
      GTEST_SKIP() << "no GPU that multiplies FP8";
  }
};

TEST_P(Graphs, AreBitIdentical) {
  const LocalJobResult without = Train(JobOf(GetParam(), false));
  const int before = Launches();
  const LocalJobResult with = Train(JobOf(GetParam(), true));
  // Except the first two, and the first after an evaluation, which has no pending updates to begin with.
  EXPECT_EQ(Launches() - before, (16 - 2 - 2) * World());
  ExpectSame(without, with, 0);
  ExpectSameEvaluations(without, with);
}

TEST_P(Graphs, ReportTimesAndCounts) {
  const LocalJobResult result = Train(JobOf(GetParam(), true));
  const v1::StepReport& plain = result.reports[0][1];
  bool made_room = false;
  for (size_t s = 2; s < result.reports[0].size(); ++s) {
    const v1::StepReport& report = result.reports[0][s];
    EXPECT_GT(report.compute_seconds(), 0) << s + 1;
    EXPECT_GE(report.step_seconds(), report.compute_seconds()) << s + 1;
    EXPECT_EQ(report.ops_size(), plain.ops_size()) << s + 1;
    if (made_room |= report.warnings_size() > 0) continue;
    EXPECT_EQ(report.memory().device_mallocs(), plain.memory().device_mallocs()) << s + 1;
    EXPECT_EQ(report.memory().peak_bytes(), plain.memory().peak_bytes()) << s + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, Graphs,
    testing::Values(
        Case{"NoShard", v1::STRATEGY_NO_SHARD}, Case{"Optim", v1::STRATEGY_OPTIM},
        Case{"OptimGrads", v1::STRATEGY_OPTIM_GRADS}, Case{"Sharded", v1::STRATEGY_OPTIM_GRADS_PARAMS},
        Case{"Accumulating", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2},
        Case{"Fp32", v1::STRATEGY_OPTIM_GRADS_PARAMS, 1, v1::DTYPE_FP32},
        Case{"Fp16", v1::STRATEGY_OPTIM_GRADS_PARAMS, 1, v1::DTYPE_FP16},
        Case{"Fp8", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::DTYPE_FP8},
        Case{"Tied", v1::STRATEGY_OPTIM_GRADS_PARAMS, 1, v1::DTYPE_BF16, true},
        Case{"Recomputing", v1::STRATEGY_OPTIM_GRADS_PARAMS, 1, v1::DTYPE_BF16, false, v1::RECOMPUTE_FULL},
        Case{"Experts", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::DTYPE_BF16, false, v1::RECOMPUTE_NONE, true},
        Case{"ExpertsFp8", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::DTYPE_FP8, false, v1::RECOMPUTE_NONE,
             true},
        Case{"ExpertsFp32", v1::STRATEGY_OPTIM_GRADS_PARAMS, 1, v1::DTYPE_FP32, false,
             v1::RECOMPUTE_SELECTIVE, true},
        Case{"ExpertsAmong", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, v1::DTYPE_BF16, false, v1::RECOMPUTE_NONE,
             true, 4},
        Case{"ExpertsAmongFp8", v1::STRATEGY_OPTIM_GRADS_PARAMS, 1, v1::DTYPE_FP8, false,
             v1::RECOMPUTE_SELECTIVE, true, 4}),
    NameOf);

class GraphFeatures : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
  }
  const Case sharded_{"", v1::STRATEGY_OPTIM_GRADS_PARAMS};
};

// Capacity grows between two launches, and steps are recorded again. Dispatches tokens, or rows with top-1
// routing over four ranks.
TEST_F(GraphFeatures, ReplayAfterExpertOverflow) {
  if (World() == 1) GTEST_SKIP() << "one GPU has all experts";
  for (const int per_token : {2, 1}) {
    Case uneven = sharded_;
    uneven.experts = true;
    uneven.among = per_token;
    uneven.words = 2;
    const LocalJobResult without = Train(JobOf(uneven, false));
    const int before = Launches();
    const LocalJobResult with = Train(JobOf(uneven, true));
    EXPECT_GT(Launches() - before, 6 * World());
    ExpectSame(without, with, 0);
    ExpectSameEvaluations(without, with);
    int warnings = 0;
    for (const v1::StepReport& report : with.reports[0]) warnings += report.warnings_size();
    EXPECT_GT(warnings, 0);
  }
}

TEST_F(GraphFeatures, CheckpointsAreIdentical) {
  const TempDir dir;
  const LocalJobResult without = Train(JobOf(sharded_, false));
  v1::JobSpec saving = JobOf(sharded_, true);
  saving.mutable_checkpoint()->set_dir(dir.path());
  saving.mutable_checkpoint()->set_every_steps(4);
  const LocalJobResult with = Train(saving);
  ExpectSame(without, with, 0);
  v1::JobSpec going_on = JobOf(sharded_, true);
  going_on.mutable_checkpoint()->set_load(dir.path() + "/iter_0000008");
  const LocalJobResult rest = Train(going_on);
  ASSERT_EQ(rest.reports[0].size(), 8u);
  EXPECT_EQ(rest.reports[0].back().loss(), without.reports[0].back().loss());
  EXPECT_EQ(rest.weights, without.weights);
}

TEST_F(GraphFeatures, DetectSpikes) {
  const auto spiking = [this](bool graphs) {
    v1::JobSpec job = JobOf(sharded_, graphs);
    v1::OnSpike* spike = job.mutable_train()->mutable_on_spike();
    spike->set_action(v1::STEP_ACTION_SKIP);
    spike->set_grad_norm_factor(1.0001);  // Half of all steps are above their median.
    spike->set_window(4);
    spike->set_max(1000);
    return job;
  };
  const LocalJobResult without = Train(spiking(false)), with = Train(spiking(true));
  int skipped = 0;
  for (const v1::StepReport& report : without.reports[0]) skipped += report.skipped() ? 1 : 0;
  EXPECT_GT(skipped, 0);
  ExpectSame(without, with, 0);
}

// Documents in one attention call in bf16, one by one in fp32, and on CPU.
TEST_F(GraphFeatures, DocumentsAreNotRecorded) {
  const auto packed = [](v1::DType compute, v1::Device device) {
    v1::JobSpec job = JobOf({"", v1::STRATEGY_OPTIM_GRADS_PARAMS, 2, compute}, true);
    job.mutable_data()->mutable_synthetic()->set_vocab(40);
    job.mutable_data()->set_document_end_token(7);
    job.mutable_train()->set_steps(6);  // Different types diverge over many steps.
    job.mutable_optimizer()->mutable_adamw()->set_lr(1e-3);
    job.mutable_resources()->set_device(device);
    return job;
  };
  const LocalJobResult exact = Train(packed(v1::DTYPE_FP32, v1::DEVICE_CPU));
  const int before = Launches();
  for (const v1::DType compute : {v1::DTYPE_FP32, v1::DTYPE_BF16}) {
    const LocalJobResult result = Train(packed(compute, v1::DEVICE_CUDA));
    const double relative = compute == v1::DTYPE_FP32 ? 1e-3 : 2e-2;
    for (size_t s = 0; s < exact.reports[0].size(); ++s) {
      const double loss = exact.reports[0][s].loss(), evaluated = exact.reports[0][s].evaluation().loss();
      EXPECT_NEAR(result.reports[0][s].loss(), loss, relative * loss) << s + 1;
      EXPECT_NEAR(result.reports[0][s].evaluation().loss(), evaluated, relative * evaluated) << s + 1;
      EXPECT_EQ(result.reports[0][s].tokens(), exact.reports[0][s].tokens()) << s + 1;
    }
  }
  EXPECT_EQ(Launches(), before);
}

// All three are launched.
TEST_F(GraphFeatures, TraceAttributesUpdates) {
  const TempDir dir;
  const v1::JobSpec job = JobOf(sharded_, true);
  std::vector<std::unique_ptr<StepTraces>> traces;
  LocalJobOptions options;
  for (int rank = 0; rank < World(); ++rank) {
    StepTraces::Options of;
    of.directory = dir.path();
    of.rank = rank;
    of.steps = {8, 9, 10};
    traces.push_back(std::make_unique<StepTraces>(std::move(of)));
    options.traces.push_back(traces.back().get());
  }
  ExpectSame(Train(job), Train(job, options), 0);
  for (int rank = 0; rank < World(); ++rank) {
    ASSERT_TRUE(traces[rank]->AwaitWritten(absl::Minutes(1)));
    std::map<int, std::map<int, int>> ran;  // By step and instruction: how often.
    std::map<int, std::vector<std::pair<int64_t, int64_t>>> lanes;
    for (const int step : {8, 9, 10}) {
      const YAML::Node trace = YAML::LoadFile(dir.File(TraceFileName(step, rank)));
      const auto origin = trace["beginUnixNanos"].as<int64_t>();
      for (const YAML::Node& event : trace["traceEvents"]) {
        if (event["ph"].as<std::string>() != "X") continue;
        const auto kind = event["cat"].as<std::string>();
        if (kind == "step" || kind == "kernel" || kind == "copy")
          continue;  // The last two are the device's own.
        const int of = event["args"]["step"].as<int>();
        EXPECT_EQ(of, kind == "Update" ? step - 1 : step) << event["name"];
        ++ran[of][event["args"]["instruction"].as<int>()];
        const int64_t begin = origin + std::llround(event["ts"].as<double>() * 1000);
        lanes[event["tid"].as<int>()].emplace_back(begin,
                                                   begin + std::llround(event["dur"].as<double>() * 1000));
      }
    }
    EXPECT_EQ(ran[8].size(), ran[9].size());
    for (const auto& [instruction, times] : ran[8]) EXPECT_EQ(times, 1) << instruction;
    EXPECT_LT(ran[10].size(), ran[9].size()) << "its updates are in the trace of step 11";
    for (auto& [lane, spans] : lanes) {
      std::sort(spans.begin(), spans.end());
      // The resolution of GPU events is half a microsecond.
      for (size_t i = 1; i < spans.size(); ++i) EXPECT_GE(spans[i].first, spans[i - 1].second - 1000) << lane;
    }
  }
}

}  // namespace
}  // namespace fsdpd

// Interposes the runtime's function, for every library of this process.
extern "C" cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  using Real = cudaError_t (*)(cudaGraphExec_t, cudaStream_t);
  static const auto real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "cudaGraphLaunch"));
  ++fsdpd::Launches();
  return real(graph, stream);
}
