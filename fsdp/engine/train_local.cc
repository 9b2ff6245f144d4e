// Trains a job in one process, ranks as threads, and prints one loss a line: what parity tests compare with
// another engine that was given the same weights and tokens.
//
//   train_local --spec job.json [--weights in.f32] [--dump-weights out.f32] [--dump-batches out.i64]
//
// Weight files hold all parameters as fp32, one after the other in layout order (fsdp/plan/model_facts.h
// lists it). A batches file holds int64: for each step all tokens, then all targets of the global batch, in
// sample order.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>

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

absl::Status WriteWeights(const std::string& path, const std::vector<float>& weights) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(weights.data()), weights.size() * sizeof(float));
  file.close();
  return file ? absl::OkStatus() : absl::DataLossError(path + ": cannot be written");
}

// One half of a step's global batch: the ranks hold its samples in order.
absl::Status AppendBatch(const std::vector<Batches>& ranks, const Spec& spec, int64_t step,
                         at::Tensor Batch::*half, std::ofstream* file) {
  for (const Batches& rank : ranks) {
    for (int64_t m = 0; m < spec.micro_batches_per_step(); ++m) {
      FSDPD_ASSIGN_OR_RETURN(const Batch batch, rank.Read(step, m));
      const at::Tensor values = (batch.*half).contiguous();
      file->write(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
    }
  }
  return absl::OkStatus();
}

absl::Status WriteBatches(const std::string& path, const Spec& spec) {
  std::vector<Batches> ranks;
  for (int rank = 0; rank < spec.world; ++rank) {
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
  std::string weights;  // The others may be empty.
  std::string dump_weights;
  std::string dump_batches;
};

absl::Status Train(const Files& files) {
  FSDPD_ASSIGN_OR_RETURN(const std::string json, ReadFile(files.spec));
  FSDPD_ASSIGN_OR_RETURN(const Plan plan, PlanOfJson(json));
  if (!files.dump_batches.empty()) FSDPD_RETURN_IF_ERROR(WriteBatches(files.dump_batches, plan.spec));
  std::vector<float> weights;
  if (!files.weights.empty()) {
    FSDPD_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(files.weights));
    weights.resize(bytes.size() / sizeof(float));
    bytes.copy(reinterpret_cast<char*>(weights.data()), weights.size() * sizeof(float));
  }
  FSDPD_ASSIGN_OR_RETURN(const LocalJobResult result, RunLocalJob(plan, weights));
  for (const v1::StepReport& report : result.reports[0]) std::printf("%.9g\n", report.loss());
  return files.dump_weights.empty() ? absl::OkStatus() : WriteWeights(files.dump_weights, result.weights);
}

}  // namespace
}  // namespace fsdpd

int main(int argc, char** argv) {
  CLI::App app("Trains a job in one process and prints one loss a line");
  fsdpd::Files files;
  app.add_option("--spec", files.spec, "JobSpec in JSON")->required();
  app.add_option("--weights", files.weights,
                 "Initial parameters, fp32 in layout order (default: from the seed)");
  app.add_option("--dump-weights", files.dump_weights, "Where to write the parameters after the last step");
  app.add_option("--dump-batches", files.dump_batches, "Where to write the tokens of all steps");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = fsdpd::Train(files);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
