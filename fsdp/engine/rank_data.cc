#include "fsdp/engine/rank_data.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/comm/peer_lost.h"
#include "fsdp/engine/agreement.h"
#include "fsdp/engine/error_cause.h"
#include "fsdp/plan/spec/steps_limit.h"

namespace fsdpd {
namespace {

struct Files {
  std::shared_ptr<const Batches> training;
  std::shared_ptr<const EvaluationBatches> evaluation;  // Null if the spec has no evaluation.
};

absl::StatusOr<Files> OpenFiles(const RankDataOptions& options) {
  Files files;
  FSDPD_ASSIGN_OR_RETURN(Batches training, Batches::Open(*options.spec, options.rank, options.origin));
  files.training = std::make_shared<const Batches>(std::move(training));
  if (options.spec->evaluation.every_steps == 0) return files;
  FSDPD_ASSIGN_OR_RETURN(EvaluationBatches evaluation, EvaluationBatches::Open(*options.spec, options.rank));
  files.evaluation = std::make_shared<const EvaluationBatches>(std::move(evaluation));
  return files;
}

absl::StatusOr<std::vector<std::string>> TraitsOf(const Batches& training,
                                                  const EvaluationBatches* evaluation) {
  FSDPD_ASSIGN_OR_RETURN(std::vector<std::string> lines, training.Traits());
  if (evaluation == nullptr) return lines;
  FSDPD_ASSIGN_OR_RETURN(const std::vector<std::string> more, evaluation->Traits());
  lines.insert(lines.end(), more.begin(), more.end());
  return lines;
}

absl::StatusOr<std::vector<std::string>> TraitsOf(const absl::StatusOr<Files>& files) {
  FSDPD_RETURN_IF_ERROR(files.status());
  return TraitsOf(*files->training, files->evaluation.get());
}

absl::Status AgreeOnData(const RankDataOptions& options, const absl::StatusOr<Files>& files) {
  const Spec& spec = *options.spec;
  const bool has_files = !spec.data.tokens.empty() || spec.evaluation.every_steps > 0;
  const auto world = static_cast<int>(spec.mesh.world());
  if (options.store == nullptr || world == 1 || !has_files)
    return WithFileCause(v1::ErrorClass::KIND_DATA, /*by_all=*/true, files.status());
  const OpenedFiles opened = {"data/files", "token files", TraitsOf(files), v1::ErrorClass::KIND_DATA};
  return AgreeOnFiles(options.store, options.rank, world, opened, kLongestFileWait);
}

// All ranks have the same files, so a content error is the same for all.
absl::Status Read(const absl::Status& status) {
  return WithFileCause(v1::ErrorClass::KIND_DATA, /*by_all=*/true, status);
}

BatchReaderOptions ReaderOf(const RankDataOptions& options) {
  BatchReaderOptions reader;
  reader.rows = options.spec->micro_batch;
  reader.sequence = options.spec->SequenceOf(options.rank).tokens();
  reader.documents = options.spec->data.document_end_token.has_value();
  reader.device = options.spec->device;
  reader.clock = options.clock;
  return reader;
}

absl::StatusOr<std::unique_ptr<BatchReader>> ReadTraining(const RankDataOptions& options,
                                                          const Files& files) {
  BatchReaderOptions reader = ReaderOf(options);
  reader.read = [batches = files.training, before = options.before_read](int64_t step, int64_t m, Batch* to) {
    if (before && m == 0) before(step);
    return Read(batches->Read(step, m, to));
  };
  reader.first = options.origin.step + 1;
  reader.last = options.spec->steps;
  reader.micro_batches = options.spec->micro_batches_per_step();
  reader.held = options.held;
  return BatchReader::Make(std::move(reader));
}

absl::StatusOr<std::unique_ptr<BatchReader>> ReadEvaluations(const RankDataOptions& options,
                                                             const Files& files) {
  const int64_t every = options.spec->evaluation.every_steps, steps = options.spec->steps;
  const int64_t done = options.origin.step;
  const bool one_more = steps % every != 0 && done < steps;  // After the last step.
  BatchReaderOptions reader = ReaderOf(options);
  reader.read = [batches = files.evaluation](int64_t round, int64_t /*micro_batch*/, Batch* to) {
    return Read(batches->Read((round - 1) % batches->rounds(), to));
  };
  reader.last = (steps / every - done / every + (one_more ? 1 : 0)) * files.evaluation->rounds();
  return BatchReader::Make(std::move(reader));
}

void LogPacking(const Files& files) {
  std::vector<std::string> notes = files.training->PackingNotes();
  if (files.evaluation != nullptr) {
    for (std::string& note : files.evaluation->PackingNotes()) notes.push_back(std::move(note));
  }
  for (const std::string& note : notes) LogInfo("%s", note);
}

absl::StatusOr<int64_t> ComputeSteps(const Spec& spec, double epochs, bool by_all) {
  constexpr auto kKind = v1::ErrorClass::KIND_DATA;
  const absl::StatusOr<Batches> batches = Batches::Open(spec, /*rank=*/0);
  if (!batches.ok()) {
    return by_all ? WithFileCause(kKind, /*by_all=*/true, batches.status())
                  : WithNodeFileCause(kKind, batches.status());
  }
  const double steps = StepsOfEpochs(epochs, batches->samples_per_epoch(), spec.global_batch);
  if (steps <= kMaxSteps) return static_cast<int64_t>(steps);
  return WithCause(
      kKind, /*permanent=*/true,
      absl::InvalidArgumentError(absl::StrFormat(
          "train.epochs: too many steps (got %g epochs of %d samples, %g steps; want at most %d); "
          "write a smaller number",
          epochs, batches->samples_per_epoch(), steps, kMaxSteps)));
}

}  // namespace

double StepsOfEpochs(double epochs, int64_t samples, int64_t global_batch) {
  // 1.1 epochs of 100 samples are 110 samples, although the product is slightly more.
  constexpr double kRounding = 1e-9;
  const double steps = epochs * static_cast<double>(samples) / static_cast<double>(global_batch);
  return std::max(1.0, std::ceil(steps * (1 - kRounding)));
}

absl::StatusOr<int64_t> AgreeOnSteps(Store* store, int rank, const Spec& spec, double epochs, bool by_all) {
  constexpr char kKey[] = "data/steps", kError[] = "error";
  if (rank == 0) {
    const absl::StatusOr<int64_t> steps = ComputeSteps(spec, epochs, by_all);
    FSDPD_RETURN_IF_ERROR(store->Set(kKey, steps.ok() ? absl::StrCat(*steps) : kError));
    return steps;
  }
  FSDPD_ASSIGN_OR_RETURN(const std::string text, GetFrom(store, 0, kKey, kLongestFileWait));
  int64_t steps = 0;
  if (absl::SimpleAtoi(text, &steps)) return steps;
  return OfPeer(absl::FailedPreconditionError("rank 0 could not compute the steps of train.epochs"));
}

absl::StatusOr<RankData> RankData::Open(const RankDataOptions& options) {
  const absl::StatusOr<Files> files = OpenFiles(options);
  FSDPD_RETURN_IF_ERROR(AgreeOnData(options, files));
  LogPacking(*files);
  RankData data;
  data.batches = files->training;
  FSDPD_ASSIGN_OR_RETURN(data.training, ReadTraining(options, *files));
  if (files->evaluation == nullptr) return data;
  data.validation = files->evaluation;
  FSDPD_ASSIGN_OR_RETURN(data.evaluation, ReadEvaluations(options, *files));
  data.rounds = files->evaluation->rounds();
  return data;
}

std::vector<std::string> RankData::Warnings() const {
  std::vector<std::string> warnings = batches->Warnings();
  if (validation == nullptr) return warnings;
  for (std::string& warning : validation->Warnings()) warnings.push_back(std::move(warning));
  return warnings;
}

absl::StatusOr<std::vector<std::string>> RankData::Traits() const {
  return TraitsOf(*batches, validation.get());
}

}  // namespace fsdpd
