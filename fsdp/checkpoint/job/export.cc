#include "fsdp/checkpoint/job/export.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/json_quote.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/convert/lora_merge.h"
#include "fsdp/checkpoint/convert/open_store.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/format/json.h"
#include "fsdp/checkpoint/hf/hf_config_text.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/checkpoint/job/job_file.h"
#include "fsdp/checkpoint/job/origin_check.h"
#include "fsdp/data/input_file.h"

namespace fsdpd {
namespace {

constexpr char kMarkName[] = "fsdpd.json";
constexpr int64_t kMaxMarkBytes = 1 << 16;
constexpr int64_t kFileBytes = 5'000'000'000;  // The default of transformers.
constexpr int kMaxThreads = 8;                 // More threads do not make disks faster.

// Whether a job of fsdpd wrote it, this one or another.
bool IsExport(const std::string& directory) {
  const absl::StatusOr<std::string> text =
      ReadInputFile(absl::StrCat(directory, "/", kMarkName), kMaxMarkBytes);
  const absl::StatusOr<JsonValue> mark = text.ok() ? ParseJson(*text) : text.status();
  const JsonValue* owner = mark.ok() ? mark->Find("job") : nullptr;
  return owner != nullptr && owner->kind == JsonValue::Kind::kText;
}

absl::Status CheckMayReplace(const std::string& directory) {
  std::error_code error;
  const bool absent = !std::filesystem::exists(directory, error) && !error;
  if (absent || std::filesystem::is_empty(directory, error) || IsExport(directory)) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat(directory, ": already exists and is not an export of a job; move it away"));
}

// Nullopt if the package has none. Its size is checked when it is unpacked.
absl::StatusOr<std::optional<std::string>> ConfigOfPackage(const std::string& package_dir) {
  const std::string path = absl::StrCat(package_dir, "/", kHfConfigName);
  std::error_code error;
  if (!std::filesystem::is_directory(package_dir, error))
    return absl::NotFoundError(absl::StrCat(package_dir, ": the unpacked package is gone"));
  if (!std::filesystem::exists(path, error) && !error) return std::nullopt;
  FSDPD_ASSIGN_OR_RETURN(std::string text, ReadInputFile(path, JsonLimits().bytes));
  return text;
}

// Nullopt if the job did not start from a directory with a config.json of this model.
std::optional<std::string> ConfigOfStart(const Spec& spec) {
  const std::string& load = spec.lora.enabled() ? spec.lora.base_model : spec.checkpoint.load;
  if (load.empty()) return std::nullopt;
  const absl::StatusOr<std::optional<std::vector<std::string>>> differences =
      CompareHfConfig(load, spec.model);
  if (!differences.ok() || !differences->has_value() || !(*differences)->empty()) return std::nullopt;
  const absl::StatusOr<std::string> text =
      ReadInputFile(absl::StrCat(load, "/", kHfConfigName), JsonLimits().bytes);
  if (!text.ok()) return std::nullopt;
  return *text;
}

std::string MarkOf(const Spec& spec, const JobExport& what) {
  return absl::StrCat("{\"job\": ", JsonQuoted(what.job), ", \"step\": ", spec.steps, "}\n");
}

// PEFT trains adapters in float32.
void TakePeft(const Spec& spec, const JobExport& what, ConversionOptions* conversion) {
  conversion->type = FindTensorType("float32");
  conversion->adapters = spec.lora;
  // The checkpoint, if the job names a directory of them.
  conversion->adapters->base_model = what.base_model;
}

// `merge`: is set for a LoRA job, and must outlive the conversion.
absl::Status TakeHf(const Spec& spec, const JobExport& what, ConversionOptions* conversion,
                    std::unique_ptr<LoraMerge>* merge) {
  conversion->type = FindTensorType(spec.precision.compute == DType::kBf16 ? "bfloat16" : "float32");
  conversion->file_bytes = kFileBytes;
  const bool is_package = std::holds_alternative<PackageConfig>(spec.model);
  FSDPD_ASSIGN_OR_RETURN(const std::optional<std::string> config,
                         is_package ? ConfigOfPackage(what.package_dir)
                                    : absl::StatusOr<std::optional<std::string>>(ConfigOfStart(spec)));
  if (config.has_value() || !is_package) {
    FSDPD_ASSIGN_OR_RETURN(conversion->config,
                           config.has_value()
                               ? RewriteHfConfig(*config, conversion->type->name)
                               : MakeHfConfig(spec.model, conversion->type->name, spec.initial.deviation));
  }
  if (!spec.lora.enabled()) return absl::OkStatus();
  conversion->source = what.base_model;
  FSDPD_ASSIGN_OR_RETURN(*merge, LoraMerge::Open(what.checkpoint, spec.model, spec.lora));
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<DcpReader> trained, DcpReader::Open(what.checkpoint));
  FSDPD_ASSIGN_OR_RETURN(const BaseLabel want, ReadBaseModel(*trained));
  FSDPD_RETURN_IF_ERROR(CheckBase(want, what.base_model, spec.model, kMaxThreads, what.stopped));
  conversion->merge = merge->get();
  conversion->optimizer = false;
  return absl::OkStatus();
}

}  // namespace

std::string ExportPath(const CheckpointConfig& checkpoint) {
  return absl::StrCat(checkpoint.dir, "/", checkpoint.export_format);
}

absl::StatusOr<int64_t> ExportJob(const Spec& spec, const JobExport& what) {
  ConversionOptions conversion;
  conversion.source = what.checkpoint;
  conversion.target = ExportPath(spec.checkpoint);
  conversion.model = spec.model;
  conversion.to = StoreFormat::kHf;
  conversion.mark_name = kMarkName;
  conversion.mark = MarkOf(spec, what);
  conversion.attempt = what.attempt;
  conversion.may_commit = what.may_commit;
  FSDPD_RETURN_IF_ERROR(CheckMayReplace(conversion.target));
  std::unique_ptr<LoraMerge> merge;
  if (spec.checkpoint.export_format == "peft") {
    TakePeft(spec, what, &conversion);
  } else {
    FSDPD_RETURN_IF_ERROR(TakeHf(spec, what, &conversion, &merge));
  }
  const int threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  ConversionProgress progress;
  FSDPD_ASSIGN_OR_RETURN(const ConversionResult result,
                         Convert(conversion, threads, what.stopped, &progress));
  if (result.violations.empty()) return result.bytes;
  const DcpViolation& first = result.violations[0];
  return absl::DataLossError(absl::StrCat(what.checkpoint, ": ", first.where, ": ", first.what));
}

}  // namespace fsdpd
