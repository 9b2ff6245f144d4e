// train_local: trains a job in one process, with ranks as threads, and prints one loss per line. Parity tests
// compare them with another engine that has the same weights and tokens.
//
//   train_local --spec job.json [--device cpu|cuda] [--weights in.f32] [--dump-weights out.f32]
//               [--dump-batches out.i64 [--only-batches]] [--trace out.json] [--picture out.svg]
//               [--kernels out.json] [--job ID] [--times]
//
// Weight files contain all parameters as consecutive fp32 values: units in order, and the parameters of each
// unit as fsdp/plan/model/model_facts.h lists them. A batches file contains int64 values: for each step all
// tokens of the global batch, then all targets, in sample order. A trace shows the last step of every rank
// (fsdp/plan/predict/timeline.h).
#include <torch/csrc/autograd/profiler_kineto.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>

#include "base/check.h"
#include "fsdp/data/batches.h"
#include "fsdp/engine/local_job.h"

namespace fsdpd {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(path + ": cannot be read");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

absl::Status WriteFile(const std::string& path, const void* bytes, size_t size) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  file.close();
  return file ? absl::OkStatus() : absl::DataLossError(path + ": cannot be written");
}

// Writes the tokens or targets of a step's global batch: ranks hold its samples in order.
absl::Status AppendBatch(const std::vector<Batches>& ranks, const Spec& spec, int64_t step,
                         at::Tensor Batch::*half, std::ofstream* file) {
  Batch batch = MakeBatch(spec);
  for (const Batches& rank : ranks) {
    for (int64_t m = 0; m < spec.micro_batches_per_step(); ++m) {
      FSDPD_RETURN_IF_ERROR(rank.Read(step, m, &batch));
      const at::Tensor& values = batch.*half;
      file->write(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
    }
  }
  return absl::OkStatus();
}

absl::Status WriteBatches(const std::string& path, const Spec& spec) {
  if (spec.mesh.SizeOf(Group::kSample) > 1)
    return absl::InvalidArgumentError(
        "--dump-batches: not supported with parallel.pipeline, context or tensor, whose ranks share samples");
  std::vector<Batches> ranks;
  for (int rank = 0; rank < spec.mesh.world(); ++rank) {
    FSDPD_ASSIGN_OR_RETURN(Batches batches, Batches::Open(spec, rank));
    ranks.push_back(std::move(batches));
  }
  std::ofstream file(path, std::ios::binary);
  for (int64_t step = 1; step <= spec.steps; ++step) {
    FSDPD_RETURN_IF_ERROR(AppendBatch(ranks, spec, step, &Batch::tokens, &file));
    FSDPD_RETURN_IF_ERROR(AppendBatch(ranks, spec, step, &Batch::targets, &file));
  }
  file.close();
  return file ? absl::OkStatus() : absl::DataLossError(path + ": cannot be written");
}

struct Files {
  std::string spec;
  std::string weights;  // This and the following may be empty.
  std::string dump_weights;
  std::string dump_batches;
  bool only_batches = false;
  bool times = false;
  std::string trace;
  std::string picture;
  std::string kernels;
  std::string job;
};

// The device of the command line overrides the spec's, so specs for GPUs can run on a CPU.
absl::StatusOr<Plan> ReadPlan(const std::string& path, bool cuda) {
  FSDPD_ASSIGN_OR_RETURN(const std::string json, ReadFile(path));
  FSDPD_ASSIGN_OR_RETURN(v1::JobSpec job, ReadJob(json));
  job.mutable_resources()->set_device(cuda ? v1::DEVICE_CUDA : v1::DEVICE_CPU);
  return AcceptedPlan(job);
}

absl::StatusOr<std::vector<float>> ReadWeights(const std::string& path) {
  FSDPD_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  std::vector<float> weights(bytes.size() / sizeof(float));
  bytes.copy(reinterpret_cast<char*>(weights.data()), weights.size() * sizeof(float));
  return weights;
}

// Runs the job; if `kernels` names a file, writes all CUDA kernels to it as a Chrome trace.
absl::StatusOr<LocalJobResult> Run(const Plan& plan, const LocalJobOptions& options,
                                   const std::string& kernels) {
  if (kernels.empty()) return RunLocalJob(plan, options);
  FSDPD_RETURN_IF_ERROR(WriteFile(kernels, "", 0));  // The profiler does not report write errors.
  namespace profiler = torch::autograd::profiler;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<torch::profiler::impl::ActivityType> activities = {
      torch::profiler::impl::ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  absl::StatusOr<LocalJobResult> result = RunLocalJob(plan, options);
  profiler::disableProfiler()->save(kernels);
  return result;
}

absl::Status Train(const Files& files, bool cuda) {
  FSDPD_ASSIGN_OR_RETURN(const Plan plan, ReadPlan(files.spec, cuda));
  if (!files.dump_batches.empty()) FSDPD_RETURN_IF_ERROR(WriteBatches(files.dump_batches, plan.spec));
  if (files.only_batches) return absl::OkStatus();
  LocalJobOptions options;
  options.label.job = files.job;
  if (!files.weights.empty()) {
    FSDPD_ASSIGN_OR_RETURN(options.weights, ReadWeights(files.weights));
  }
  FSDPD_ASSIGN_OR_RETURN(const LocalJobResult result, Run(plan, options, files.kernels));
  for (const v1::StepReport& report : result.reports[0]) {
    std::printf("%.9g\n", report.loss());
    if (files.times) std::fprintf(stderr, "%.6f s\n", report.step_seconds());
  }
  if (!files.trace.empty()) {
    const std::string json = TraceJson(result.timelines);
    FSDPD_RETURN_IF_ERROR(WriteFile(files.trace, json.data(), json.size()));
  }
  if (!files.picture.empty()) {
    const std::string svg = Picture(result.timelines[0]);
    FSDPD_RETURN_IF_ERROR(WriteFile(files.picture, svg.data(), svg.size()));
  }
  if (files.dump_weights.empty()) return absl::OkStatus();
  return WriteFile(files.dump_weights, result.weights.data(), result.weights.size() * sizeof(float));
}

}  // namespace
}  // namespace fsdpd

int main(int argc, char** argv) {
  CLI::App app("Train a job in one process and print one loss per line");
  fsdpd::Files files;
  app.add_option("--spec", files.spec, "Read the JobSpec from this JSON file")->required();
  app.add_flag("--times", files.times, "Print the seconds of each step to stderr");
  app.add_option("--weights", files.weights,
                 "Read initial parameters, fp32 in layout order (default: from the seed)");
  app.add_option("--dump-weights", files.dump_weights,
                 "Write the parameters after the last step to this file");
  CLI::Option* const batches =
      app.add_option("--dump-batches", files.dump_batches, "Write the tokens of all steps to this file");
  app.add_flag("--only-batches", files.only_batches, "Exit without training")->needs(batches);
  app.add_option("--trace", files.trace, "Write the timeline of the last step, for ui.perfetto.dev");
  app.add_option("--picture", files.picture, "Draw the timeline of rank 0 as SVG");
  app.add_option("--kernels", files.kernels, "Write all CUDA kernels of the run, for ui.perfetto.dev");
  app.add_option("--job", files.job,
                 "Resume from checkpoints of this job id in checkpoint.dir (default: none)");
  std::string device = "cpu";
  app.add_option("--device", device, "Train on cpu (default) or cuda, with one GPU per rank")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.callback([&] {
    if (!files.kernels.empty() && device != "cuda") throw CLI::RequiredError("--kernels: --device cuda");
  });
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = fsdpd::Train(files, device == "cuda");
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString(absl::StatusToStringMode::kWithNoExtraData).c_str());
  return 1;
}
