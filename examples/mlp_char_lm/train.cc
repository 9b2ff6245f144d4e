// Program that trains the model of char_lm.h on a text file, sharded, without the daemon.
//
//   train TEXT_FILE                        two ranks, as threads of this process
//   torchrun --no-python --nproc-per-node 2 train TEXT_FILE /tmp/a_new_directory
//                                          two processes, rendezvous in the directory, TCP between them
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "examples/mlp_char_lm/char_lm.h"
#include "fsdp/fsdp.h"

namespace {

std::string JobFor(const std::string& text_file) {
  return R"({"name": "char-lm",
             "data": {"tokens": [{"path": ")" +
         std::filesystem::absolute(text_file).string() +
         R"(", "type": "TOKEN_TYPE_U8"}], "sequence_length": 64},
             "train": {"steps": 100, "micro_batch": 8, "global_batch": 16},
             "optimizer": {"adamw": {"lr": 0.003}, "clip_norm": 1},
             "schedule": {"cosine": {"warmup_steps": 10}},
             "resources": {"device": "DEVICE_CPU", "ranks_per_node": 2}})";
}

absl::Status PrintStep(const fsdpd::v1::StepReport& report) {
  std::printf("step %4lld  loss %7.4f  norm %7.3f  %6.0f tokens/s\n", static_cast<long long>(report.step()),
              report.loss(), report.grad_norm(), report.tokens() / report.step_seconds());
  return absl::OkStatus();
}

absl::StatusOr<fsdpd::Weights> Train(const fsdpd::Plan& plan, const CharLm& model, const char* directory) {
  fsdpd::TrainOptions options;
  options.model = &model;
  if (std::getenv("RANK") == nullptr || directory == nullptr) {
    options.on_step = PrintStep;
    return fsdpd::TrainThreads(plan, options);
  }
  absl::StatusOr<fsdpd::RankOptions> rank = fsdpd::RankOptionsOfEnvironment(plan);
  if (!rank.ok()) return rank.status();
  rank->rendezvous = directory;
  if (rank->rank == 0) options.on_step = PrintStep;
  return fsdpd::TrainRank(plan, *rank, options);
}

absl::Status Run(const std::string& text_file, const char* directory) {
  const CharLm model(/*layers=*/4, /*width=*/64);
  const absl::StatusOr<fsdpd::Plan> plan = fsdpd::PlanJson(JobFor(text_file), model);
  if (!plan.ok()) return plan.status();
  if (std::getenv("RANK") == nullptr) std::printf("%s", fsdpd::PlanText(*plan).c_str());
  absl::StatusOr<fsdpd::Weights> weights = Train(*plan, model, directory);
  if (!weights.ok()) return weights.status();
  for (const auto& [name, values] : fsdpd::ByName(*plan, &*weights)) {
    if (name == "head.output.weight") {
      std::printf("%s: norm %.3f\n", name.c_str(), values.norm().item<double>());
    }
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: train TEXT_FILE [RENDEZVOUS_DIRECTORY]\n");
    return 2;
  }
  const absl::Status status = Run(argv[1], argc == 3 ? argv[2] : nullptr);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
