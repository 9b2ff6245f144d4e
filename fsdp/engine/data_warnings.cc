#include "fsdp/engine/data_warnings.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "base/check.h"

namespace fsdpd {
namespace {

// Lists the spec fields that exclude targets.
std::string CausesText(const DataConfig& data, const char* field, const std::vector<TokenSource>& sources) {
  std::vector<std::string> causes;
  const auto has_mask = [](const TokenSource& source) { return !source.mask.empty(); };
  if (std::any_of(sources.begin(), sources.end(), has_mask)) causes.push_back(absl::StrCat(field, "[].mask"));
  if (data.ignore_index.has_value()) causes.push_back("data.ignore_index");
  if (data.document_end_token.has_value()) causes.push_back("data.document_end_token");
  return causes.empty() ? "" : absl::StrCat(" (excluded by ", absl::StrJoin(causes, ", "), ")");
}

}  // namespace

DataWarnings::DataWarnings(const Spec& spec, int64_t steps_done)
    : data_(spec.data),
      first_step_(steps_done + 1),
      last_step_(spec.steps),
      awaits_document_end_(spec.data.document_end_token.has_value()) {}

std::vector<std::string> DataWarnings::Take(const StepData& data) {
  FSDPD_CHECK(first_step_ <= data.step && data.step <= last_step_);
  std::vector<std::string> warnings;
  TakeTargets(data, &warnings);
  TakeDocuments(data, &warnings);
  return warnings;
}

void DataWarnings::TakeTargets(const StepData& data, std::vector<std::string>* warnings) {
  if (data.targets == 0) ++without_target_;
  if (data.targets == 0 && without_target_ == 1) {
    warnings->push_back(absl::StrCat("step ", data.step, " has no targets, so loss and gradient are 0",
                                     CausesText(data_, "data.tokens", data_.tokens)));
  }
  if (data.step == last_step_ && without_target_ > 1) {
    warnings->push_back(absl::StrCat(without_target_, " of the ", last_step_ - first_step_ + 1,
                                     " steps since step ", first_step_, " had no targets"));
  }
  if (data.evaluation_targets != 0 || warned_of_evaluation_) return;
  warned_of_evaluation_ = true;
  warnings->push_back(absl::StrCat("the evaluation after step ", data.step,
                                   " has no targets, so its loss is meaningless",
                                   CausesText(data_, "data.validation", data_.validation)));
}

void DataWarnings::TakeDocuments(const StepData& data, std::vector<std::string>* warnings) {
  tokens_read_ += data.tokens_read;
  if (data.document_ends > 0) awaits_document_end_ = false;
  // A resumed attempt may have read too few tokens by its last step to conclude anything.
  const bool saw_all = data.step == last_step_ && first_step_ == 1;
  if (!awaits_document_end_ || (tokens_read_ < kLongestDocument && !saw_all)) return;
  awaits_document_end_ = false;
  warnings->push_back(absl::StrCat("none of the ", tokens_read_, " tokens read is ",
                                   *data_.document_end_token,
                                   " (data.document_end_token), so each sample is one document"));
}

}  // namespace fsdpd
