#include "client/text/step_table.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace fsdpd {
namespace {

using Record = v1::StepRecord;
using Value = std::optional<double>;

}  // namespace

std::optional<double> OverlapOf(const Record& record) {
  const double seconds = record.communication_seconds();
  if (!(seconds > 0)) return std::nullopt;
  return std::clamp(1 - record.exposed_seconds() / seconds, 0.0, 1.0);
}

double TokensPerSecond(const Record& record) {
  return record.step_seconds() > 0 ? static_cast<double>(record.tokens()) / record.step_seconds() : 0;
}

const std::vector<StepQuantity>& StepQuantities() {
  static const auto* const kQuantities = new std::vector<StepQuantity>{
      {"loss", "train/loss", [](const Record& r) -> Value { return r.loss(); }},
      {"evaluation_loss", "eval/loss",
       [](const Record& r) { return r.has_evaluation_loss() ? Value(r.evaluation_loss()) : std::nullopt; }},
      {"grad_norm", "train/grad_norm", [](const Record& r) -> Value { return r.grad_norm(); }},
      {"learning_rate", "train/learning_rate", [](const Record& r) -> Value { return r.learning_rate(); }},
      {"loss_scale", "train/loss_scale",
       [](const Record& r) { return r.has_loss_scale() ? Value(r.loss_scale()) : std::nullopt; }},
      {"skipped", "train/skipped", [](const Record& r) -> Value { return r.skipped() ? 1 : 0; }},
      {"tokens", "train/tokens", [](const Record& r) -> Value { return r.tokens(); }},
      {"step_seconds", "time/step_seconds", [](const Record& r) -> Value { return r.step_seconds(); }},
      {"tokens_per_second", "time/tokens_per_second",
       [](const Record& r) -> Value { return TokensPerSecond(r); }},
      {"compute_seconds", "time/compute_seconds",
       [](const Record& r) -> Value { return r.compute_seconds(); }},
      {"communication_seconds", "time/communication_seconds",
       [](const Record& r) -> Value { return r.communication_seconds(); }},
      {"exposed_seconds", "time/exposed_seconds",
       [](const Record& r) -> Value { return r.exposed_seconds(); }},
      {"overlap", "time/overlap", OverlapOf},
      {"data_wait_seconds", "time/data_wait_seconds",
       [](const Record& r) -> Value { return r.data_wait_seconds(); }},
      {"peak_bytes", "memory/peak_bytes", [](const Record& r) -> Value { return r.peak_bytes(); }},
      {"reserved_bytes", "memory/reserved_bytes",
       [](const Record& r) -> Value { return r.reserved_bytes(); }},
      {"device_mallocs", "memory/device_mallocs",
       [](const Record& r) -> Value { return r.device_mallocs(); }},
  };
  return *kQuantities;
}

std::string NumberText(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

std::string StepCsvHeader() {
  std::string line = "step,attempt,unix_seconds";
  for (const StepQuantity& quantity : StepQuantities()) absl::StrAppend(&line, ",", quantity.name);
  return line + "\n";
}

std::string StepCsvRow(const Record& record) {
  std::string line = absl::StrFormat("%d,%d,%.6f", record.step(), record.attempt(),
                                     static_cast<double>(record.unix_nanos()) / 1e9);
  for (const StepQuantity& quantity : StepQuantities()) {
    const Value value = quantity.value(record);
    absl::StrAppend(&line, ",", value.has_value() ? NumberText(*value) : "");
  }
  return line + "\n";
}

std::vector<std::string> StepTableHeader() {
  return {"STEP", "ATTEMPT", "LOSS", "EVAL", "NORM", "RATE", "STEP TIME", "TOKENS/S", "OVERLAP", "PEAK"};
}

std::vector<std::string> StepTableRow(const Record& record) {
  const Value overlap = OverlapOf(record);
  return {absl::StrCat(record.step(), record.skipped() ? " skipped" : ""),
          absl::StrCat(record.attempt()),
          absl::StrFormat("%.4f", record.loss()),
          record.has_evaluation_loss() ? absl::StrFormat("%.4f", record.evaluation_loss()) : "-",
          absl::StrFormat("%.4g", record.grad_norm()),
          absl::StrFormat("%.4g", record.learning_rate()),
          HumanSeconds(record.step_seconds()),
          HumanCount(TokensPerSecond(record)),
          overlap.has_value() ? absl::StrFormat("%.0f%%", 100 * *overlap) : "-",
          HumanBytes(record.peak_bytes())};
}

}  // namespace fsdpd
