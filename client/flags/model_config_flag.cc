#include "client/flags/model_config_flag.h"

#include <absl/strings/str_cat.h>

#include <utility>

#include "base/process/error_line.h"
#include "client/connect/outcome.h"
#include "client/spec/spec_file.h"
#include "fsdp/checkpoint/hf/hf_config.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

LocatedViolations ModelViolations(const v1::Model& model, const FieldPlaces& places) {
  v1::JobSpec job;
  *job.mutable_model() = model;
  job.mutable_resources()->set_device(v1::DEVICE_CPU);  // Limits of GPUs do not apply to a conversion.
  LocatedViolations violations;
  for (const Violation& violation : CheckJob(job)) {
    if (violation.level == ViolationLevel::kError && IsWithin(violation.field, "model")) {
      violations.push_back(Locate(violation, places));
    }
  }
  return violations;
}

LocatedViolations Errors(LocatedViolations all) {
  LocatedViolations errors;
  for (LocatedViolation& located : all) {
    if (located.violation.level == ViolationLevel::kError) errors.push_back(std::move(located));
  }
  return errors;
}

}  // namespace

int ReportUsageError(absl::string_view why, Console* console) {
  console->err << "fsdpctl: " << WithErrorId(Escaped(std::string(why)), "INVALID_FLAG") << "\n";
  return kExitUsage;
}

bool IsValidModel(const v1::Model& model) { return ModelViolations(model, {}).empty(); }

int ReadConfigModel(const std::string& path, Console* console, v1::Model* model, std::string* text) {
  absl::StatusOr<std::string> read = ReadText(path, console->in);
  if (!read.ok()) return ReportUsageError(WithErrorId(read.status().message(), "FILE_ERROR"), console);
  *text = *std::move(read);
  // Warnings are about training, so only errors are relevant here.
  FieldPlaces places;
  LocatedViolations violations = Errors(ReadHfConfig(*text, path, model, &places));
  if (violations.empty()) violations = ModelViolations(*model, places);
  return ReportViolations(violations, console);
}

int ReadSpecModel(const std::string& path, Console* console, v1::JobSpec* job) {
  const absl::StatusOr<SpecText> spec = LoadSpec(path, {}, console->in);
  if (!spec.ok()) return ReportUsageError(WithErrorId(spec.status().message(), "FILE_ERROR"), console);
  LocatedViolations violations = Errors(spec->violations);
  if (violations.empty()) violations = ModelViolations(spec->spec.model(), spec->places);
  *job = spec->spec;
  return ReportViolations(violations, console);
}

}  // namespace fsdpd
