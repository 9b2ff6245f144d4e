#include "fsdp/checkpoint/job/export.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/json_quote.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/convert/lora_merge.h"
#include "fsdp/checkpoint/convert/open_store.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/format/durable_file.h"
#include "fsdp/checkpoint/format/json.h"
#include "fsdp/checkpoint/format/part_directory.h"
#include "fsdp/checkpoint/hf/hf_config_text.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/checkpoint/job/job_file.h"
#include "fsdp/checkpoint/job/origin_check.h"
#include "fsdp/checkpoint/names/adapter_names.h"
#include "fsdp/checkpoint/names/job_keys.h"
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

// Adapters are small: one at a time, on one thread.
absl::StatusOr<int64_t> ExportPeft(const Spec& spec, const JobExport& what) {
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<TensorReader> source, OpenStore(what.checkpoint));
  const std::vector<NamedParam> params = AdapterParamsOf(spec.model, spec.lora);
  const TensorType* const type = FindTensorType("float32");
  std::vector<StoredTensor> tensors;
  int64_t bytes = 0;
  for (const NamedParam& param : params) {
    tensors.push_back({param.theirs, type, param.shape, param.elements() * type->bytes});
    bytes += tensors.back().bytes;
  }
  const std::string target = ExportPath(spec.checkpoint);
  FSDPD_RETURN_IF_ERROR(CheckFreeSpace(target, bytes));
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<PartDirectory> part,
                         PartDirectory::Create(target, kMarkName, what.attempt));
  FSDPD_RETURN_IF_ERROR(part->KeepOnly({}));
  LoraConfig lora = spec.lora;
  lora.base_model = what.base_model;  // The checkpoint, if the job names a directory of them.
  FSDPD_ASSIGN_OR_RETURN(
      const std::unique_ptr<TensorWriter> writer,
      MakeHfWriter(part->path(), tensors, std::numeric_limits<int64_t>::max(),
                   MakePeftConfig(lora, TargetModulesOf(spec.model, spec.lora)), {}, kPeftNames));
  std::vector<char> numbers;
  for (size_t i = 0; i < params.size(); ++i) {
    if (what.stopped()) return absl::CancelledError("stopped");
    const int64_t at = source->Find(MainKey(params[i].ours));
    if (at < 0 || source->tensors()[at].bytes != tensors[i].bytes)
      return absl::DataLossError(absl::StrCat(what.checkpoint, ": has no adapter ", params[i].ours));
    numbers.resize(tensors[i].bytes);
    FSDPD_RETURN_IF_ERROR(source->Read(at, numbers.data()));
    FSDPD_RETURN_IF_ERROR(writer->Write(i, numbers.data()));
  }
  FSDPD_RETURN_IF_ERROR(writer->Finish());
  FSDPD_RETURN_IF_ERROR(ReplaceFile(part->path(), kMarkName, MarkOf(spec, what)));
  FSDPD_RETURN_IF_ERROR(what.may_commit ? what.may_commit() : absl::OkStatus());
  FSDPD_RETURN_IF_ERROR(part->Commit());
  return bytes;
}

absl::StatusOr<int64_t> ExportHf(const Spec& spec, const JobExport& what) {
  ConversionOptions conversion;
  conversion.source = spec.lora.enabled() ? what.base_model : what.checkpoint;
  conversion.target = ExportPath(spec.checkpoint);
  conversion.model = spec.model;
  conversion.to = StoreFormat::kHf;
  conversion.type = FindTensorType(spec.precision.compute == DType::kBf16 ? "bfloat16" : "float32");
  conversion.file_bytes = kFileBytes;
  const bool is_package = std::holds_alternative<PackageConfig>(spec.model);
  FSDPD_ASSIGN_OR_RETURN(const std::optional<std::string> config,
                         is_package ? ConfigOfPackage(what.package_dir)
                                    : absl::StatusOr<std::optional<std::string>>(ConfigOfStart(spec)));
  if (config.has_value() || !is_package) {
    FSDPD_ASSIGN_OR_RETURN(conversion.config,
                           config.has_value()
                               ? RewriteHfConfig(*config, conversion.type->name)
                               : MakeHfConfig(spec.model, conversion.type->name, spec.initial.deviation));
  }
  std::unique_ptr<LoraMerge> merge;
  if (spec.lora.enabled()) {
    FSDPD_ASSIGN_OR_RETURN(merge, LoraMerge::Open(what.checkpoint, spec.model, spec.lora));
    FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<DcpReader> trained, DcpReader::Open(what.checkpoint));
    FSDPD_ASSIGN_OR_RETURN(const BaseLabel want, ReadBaseModel(*trained));
    FSDPD_RETURN_IF_ERROR(CheckBase(want, what.base_model, spec.model, kMaxThreads, what.stopped));
    conversion.merge = merge.get();
    conversion.optimizer = false;
  }
  conversion.mark_name = kMarkName;
  conversion.mark = MarkOf(spec, what);
  conversion.attempt = what.attempt;
  conversion.may_commit = what.may_commit;
  const int threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  ConversionProgress progress;
  FSDPD_ASSIGN_OR_RETURN(const ConversionResult result,
                         Convert(conversion, threads, what.stopped, &progress));
  if (result.violations.empty()) return result.bytes;
  const DcpViolation& first = result.violations[0];
  return absl::DataLossError(absl::StrCat(what.checkpoint, ": ", first.where, ": ", first.what));
}

}  // namespace

std::string ExportPath(const CheckpointConfig& checkpoint) {
  return absl::StrCat(checkpoint.dir, "/", checkpoint.export_format);
}

absl::StatusOr<int64_t> ExportJob(const Spec& spec, const JobExport& what) {
  FSDPD_RETURN_IF_ERROR(CheckMayReplace(ExportPath(spec.checkpoint)));
  return spec.checkpoint.export_format == "peft" ? ExportPeft(spec, what) : ExportHf(spec, what);
}

}  // namespace fsdpd
