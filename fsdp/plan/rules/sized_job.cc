#include "fsdp/plan/rules/sized_job.h"

#include <algorithm>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

// Fields without effect on memory.
constexpr const char* kWithoutBytes[] = {"name",
                                         "data.tokens",
                                         "data.validation",
                                         "data.synthetic",
                                         "data.ignore_index",
                                         "data.packing",
                                         "data.too_long",
                                         "train.steps",
                                         "train.epochs",
                                         "train.seed",
                                         "train.evaluation",
                                         "optimizer.adamw",
                                         "optimizer.clip_norm",
                                         "optimizer.sgd.lr",
                                         "optimizer.sgd.nesterov",
                                         "optimizer.sgd.weight_decay",
                                         "optimizer.groups",
                                         "schedule",
                                         "checkpoint",
                                         "restart",
                                         "telemetry",
                                         "env"};

bool BearsOnMemory(const std::string& field) {
  if (field == "data") return false;  // Which files are read does not matter.
  return std::none_of(std::begin(kWithoutBytes), std::end(kWithoutBytes),
                      [&](const char* each) { return IsWithin(field, each); });
}

}  // namespace

std::optional<v1::JobSpec> SizedJob(const v1::JobSpec& job, const std::vector<std::string>& faulty_fields) {
  if (std::any_of(faulty_fields.begin(), faulty_fields.end(), BearsOnMemory)) return std::nullopt;
  v1::JobSpec sized;
  sized.set_name("sized");
  *sized.mutable_model() = job.model();
  sized.mutable_data()->mutable_synthetic();
  sized.mutable_data()->set_sequence_length(job.data().sequence_length());
  if (job.data().has_document_end_token())
    sized.mutable_data()->set_document_end_token(job.data().document_end_token());
  *sized.mutable_train() = job.train();
  sized.mutable_train()->set_steps(1);
  sized.mutable_train()->clear_epochs();
  sized.mutable_train()->clear_seed();
  sized.mutable_train()->clear_evaluation();
  if (job.optimizer().clip_norm() != 0) sized.mutable_optimizer()->set_clip_norm(1);
  if (job.optimizer().has_sgd()) {
    sized.mutable_optimizer()->mutable_sgd()->set_lr(1);
    sized.mutable_optimizer()->mutable_sgd()->set_momentum(job.optimizer().sgd().momentum());
  }
  *sized.mutable_precision() = job.precision();
  *sized.mutable_fsdp() = job.fsdp();
  *sized.mutable_parallel() = job.parallel();
  *sized.mutable_resources() = job.resources();
  return sized;
}

}  // namespace fsdpd
