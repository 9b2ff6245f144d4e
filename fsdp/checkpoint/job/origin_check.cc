#include "fsdp/checkpoint/job/origin_check.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <google/protobuf/util/json_util.h>

#include <map>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/spec_text/renamed_fields.h"
#include "fsdp/checkpoint/convert/megatron_files.h"
#include "fsdp/checkpoint/convert/open_store.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/format/portable_values.h"
#include "fsdp/checkpoint/hf/hf_config.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/job/job_file.h"
#include "fsdp/data/input_file.h"
#include "fsdp/plan/rules/rules.h"
#include "fsdp/plan/spec/defaults.h"
#include "fsdp/plan/spec/model_difference.h"

namespace fsdpd {
namespace {

constexpr char kIs[] = " = ";  // Between a file's name and its traits.

// Whether the model of a spec satisfies the rules; otherwise its sizes cannot be computed.
bool IsSound(const v1::Model& model) {
  v1::JobSpec job;
  *job.mutable_model() = model;
  job.mutable_resources()->set_device(v1::DEVICE_CPU);  // Avoids violations about missing GPUs.
  for (const Violation& violation : CheckJob(job)) {
    if (violation.level == ViolationLevel::kError && IsWithin(violation.field, "model")) return false;
  }
  return true;
}

std::string DataText(const std::vector<std::string>& paths) {
  return paths.empty() ? "synthetic tokens" : absl::StrJoin(paths, ", ");
}

const char* NameOf(OptimizerKind kind) { return kind == OptimizerKind::kSgd ? "sgd" : "adamw"; }

void CompareRun(const v1::JobSpec& theirs, const Spec& job, std::vector<std::string>* differences) {
  const auto add = [differences](const char* field, const std::string& there, const std::string& here) {
    if (there != here)
      differences->push_back(absl::StrCat(field, ": ", there, " there, and ", here, " here"));
  };
  std::vector<std::string> paths_there, paths_here;
  for (const v1::TokenFile& file : theirs.data().tokens()) paths_there.push_back(file.path());
  for (const TokenSource& source : job.data.tokens) paths_here.push_back(source.path);
  add("data", DataText(paths_there), DataText(paths_here));
  add("data.sequence_length", absl::StrCat(theirs.data().sequence_length()),
      absl::StrCat(job.data.sequence_length));
  add("train.seed", absl::StrCat(theirs.train().seed()), absl::StrCat(job.seed));
  add("optimizer", NameOf(theirs.optimizer().has_sgd() ? OptimizerKind::kSgd : OptimizerKind::kAdamW),
      NameOf(job.optimizer.kind));
}

// A directory's config.json. `model` is one of ours if nothing in the file is unsupported.
struct StatedConfig {
  v1::Model model;
  std::vector<std::string> unsupported;
};

absl::StatusOr<std::optional<StatedConfig>> ReadConfig(const std::string& directory) {
  const absl::StatusOr<std::unique_ptr<InputFile>> file =
      InputFile::Open(absl::StrCat(directory, "/", kHfConfigName));
  if (absl::IsNotFound(file.status())) return std::nullopt;
  FSDPD_RETURN_IF_ERROR(file.status());
  if ((*file)->size() > kMaxJobSpecBytes)
    return absl::DataLossError(absl::StrCat((*file)->path(), ": file is too large for a config.json"));
  FSDPD_ASSIGN_OR_RETURN(const std::string text, (*file)->ReadAll());
  StatedConfig config;
  for (const LocatedViolation& located : ReadHfConfig(text, kHfConfigName, &config.model)) {
    // Warnings concern how it was trained elsewhere.
    if (located.violation.level == ViolationLevel::kError) config.unsupported.push_back(Render(located));
  }
  if (config.unsupported.empty() && !IsSound(config.model))
    config.unsupported.push_back("the sizes are not those of a valid model");
  return config;
}

bool ParseSpec(const std::string& json, v1::JobSpec* spec) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  return google::protobuf::util::JsonStringToMessage(WithCurrentFieldNames(json), spec, options).ok();
}

}  // namespace

OriginDifferences CompareSpec(const std::string& json, const Spec& job) {
  OriginDifferences differences;
  if (json.empty()) return differences;
  v1::JobSpec spec;
  if (!ParseSpec(json, &spec)) {
    differences.run.push_back("the stored spec cannot be parsed and was not compared");
    return differences;
  }
  // Specs that a conversion writes have only a model; every job has data or training settings.
  const bool only_model = !spec.has_train() && !spec.has_data();
  spec = WithDefaults(spec, nullptr);
  if (!IsSound(spec.model())) {
    differences.run.push_back("the stored spec has an unknown model, which was not compared");
    return differences;
  }
  differences.model = ModelDifferences(job.model, ToModelConfig(spec.model()));
  if (job.lora.enabled() && spec.train().has_lora()) {
    const LoraConfig there = ToLoraConfig(spec.train().lora());
    if (there.rank != job.lora.rank) {
      differences.model.push_back(absl::StrCat("train.lora.rank: another rank of the adapters (got ",
                                               there.rank, ", want ", job.lora.rank, ")"));
    } else if (there.scale() != job.lora.scale()) {
      differences.model.push_back(absl::StrCat("train.lora: another scale of the adapters (got ",
                                               there.scale(), ", want ", job.lora.scale(), ")"));
    }
  }
  if (only_model) return differences;
  CompareRun(spec, job, &differences.run);
  return differences;
}

std::vector<std::string> CompareData(const std::vector<std::string>& there,
                                     const std::vector<std::string>& here) {
  // The name follows the field, which contains the index in the list.
  const auto parse = [](const std::string& line) {
    const std::pair<std::string, std::string> field = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    return std::pair<std::string, std::string>(absl::StrSplit(field.second, absl::MaxSplits(kIs, 1)));
  };
  std::map<std::string, std::string> known;
  for (const std::string& line : there) known.insert(parse(line));
  std::vector<std::string> differences;
  for (const std::string& line : here) {
    const auto [name, now] = parse(line);
    const auto before = known.find(name);
    if (before == known.end() || before->second == now) continue;
    differences.push_back(absl::StrCat(name, " has changed (was ", before->second, ", now ", now, ")"));
  }
  return differences;
}

absl::StatusOr<std::optional<std::vector<std::string>>> CompareHfConfig(const std::string& directory,
                                                                        const ModelConfig& job) {
  // The configuration may be of any family: names and shapes of the parameters decide.
  if (std::holds_alternative<PackageConfig>(job)) return std::vector<std::string>();
  FSDPD_ASSIGN_OR_RETURN(const std::optional<StatedConfig> config, ReadConfig(directory));
  if (!config.has_value()) return std::nullopt;
  if (!config->unsupported.empty()) return config->unsupported;
  return ModelDifferences(job, ToModelConfig(config->model));
}

absl::StatusOr<std::string> SpecInside(const std::string& directory, const TensorReader& reader) {
  const auto* dcp = dynamic_cast<const DcpReader*>(&reader);
  if (dcp == nullptr) return std::string();
  if (FormatOf(directory) != StoreFormat::kTorchDist) return ReadJobSpec(*dcp);
  FSDPD_ASSIGN_OR_RETURN(const MegatronCommon common, ReadMegatronCommon(directory));
  return PortableText(common.kept, kSpecKey).value_or("");
}

absl::StatusOr<std::optional<ModelConfig>> StatedModel(const std::string& directory,
                                                       const TensorReader& reader) {
  FSDPD_ASSIGN_OR_RETURN(const std::string json, SpecInside(directory, reader));
  v1::JobSpec spec;
  if (!json.empty() && ParseSpec(json, &spec)) {
    spec = WithDefaults(spec, nullptr);
    if (IsSound(spec.model())) return ToModelConfig(spec.model());
  }
  FSDPD_ASSIGN_OR_RETURN(const std::optional<StatedConfig> config, ReadConfig(directory));
  if (!config.has_value() || !config->unsupported.empty()) return std::nullopt;
  return ToModelConfig(config->model);
}

}  // namespace fsdpd
