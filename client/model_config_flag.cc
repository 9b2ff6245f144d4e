#include "client/model_config_flag.h"

#include <absl/strings/str_cat.h>

#include <utility>

#include "base/error_line.h"
#include "client/outcome.h"
#include "client/spec_file.h"
#include "fsdp/checkpoint/hf_config.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

SpecFaults ModelFaults(const v1::Model& model, const FieldPlaces& places) {
  v1::JobSpec job;
  *job.mutable_model() = model;
  job.mutable_resources()->set_device(v1::DEVICE_CPU);  // Limits of GPUs do not apply to a conversion.
  SpecFaults faults;
  for (const Violation& violation : CheckJob(job)) {
    if (violation.level == FaultLevel::kError && IsWithin(violation.field, "model")) {
      faults.push_back(Locate(violation, places));
    }
  }
  return faults;
}

SpecFaults Errors(SpecFaults all) {
  SpecFaults errors;
  for (SpecFault& fault : all) {
    if (fault.violation.level == FaultLevel::kError) errors.push_back(std::move(fault));
  }
  return errors;
}

}  // namespace

int ReportUsageError(absl::string_view why, Console* console) {
  console->err << "fsdpctl: " << WithErrorId(Escaped(std::string(why)), "INVALID_FLAG") << "\n";
  return kExitUsage;
}

bool IsValidModel(const v1::Model& model) { return ModelFaults(model, {}).empty(); }

int ReadConfigModel(const std::string& path, Console* console, v1::Model* model, std::string* text) {
  absl::StatusOr<std::string> read = ReadText(path, console->in);
  if (!read.ok()) return ReportUsageError(WithErrorId(read.status().message(), "FILE_ERROR"), console);
  *text = *std::move(read);
  // Warnings are about training, so only errors are relevant here.
  FieldPlaces places;
  SpecFaults faults = Errors(ReadHfConfig(*text, path, model, &places));
  if (faults.empty()) faults = ModelFaults(*model, places);
  return ReportFaults(faults, console);
}

int ReadSpecModel(const std::string& path, Console* console, v1::JobSpec* job) {
  const absl::StatusOr<SpecText> spec = LoadSpec(path, {}, console->in);
  if (!spec.ok()) return ReportUsageError(WithErrorId(spec.status().message(), "FILE_ERROR"), console);
  SpecFaults faults = Errors(spec->faults);
  if (faults.empty()) faults = ModelFaults(spec->spec.model(), spec->places);
  *job = spec->spec;
  return ReportFaults(faults, console);
}

}  // namespace fsdpd
