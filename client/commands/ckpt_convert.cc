// Command `ckpt convert`: conversion of a model's parameters between checkpoint formats. The model is
// determined by --spec or --config, else by config.json in the source directory, else by the spec that a
// job's checkpoint contains.
#include <absl/strings/str_cat.h>
#include <absl/time/time.h>
#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/spec_text/renamed_fields.h"
#include "base/text.h"
#include "client/commands/ckpt_commands.h"
#include "client/connect/outcome.h"
#include "client/flags/model_config_flag.h"
#include "client/text/message_output.h"
#include "client/text/progress_line.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/convert/convert_journal.h"
#include "fsdp/checkpoint/convert/lora_merge.h"
#include "fsdp/checkpoint/convert/open_store.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/hf/hf_config_text.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/hf/peft_config.h"
#include "fsdp/checkpoint/job/job_file.h"
#include "fsdp/checkpoint/job/origin_check.h"
#include "fsdp/plan/spec/defaults.h"
#include "fsdp/plan/spec/model_difference.h"
#include "proto/fsdpd/v1/checkpoint.pb.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {
namespace {

constexpr std::chrono::milliseconds kRedraw(200);
constexpr size_t kMaxOmittedNames = 3;

// The JSON of a spec, as in a job's checkpoint. Without a job it is a spec with only a model.
std::string JsonOf(const v1::JobSpec& job) {
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  FSDPD_CHECK(google::protobuf::util::MessageToJsonString(job, &json, options).ok());
  return json;
}

// The job's AdamW settings; nullopt for another optimizer. Megatron-Core counts the schedule in samples, so
// steps are multiplied by the global batch.
std::optional<AdamSettings> AdamOf(const v1::JobSpec& spec) {
  if (spec.name().empty() && !spec.has_train()) return std::nullopt;  // The spec has only a model.
  const v1::JobSpec job = WithDefaults(spec, nullptr);
  const v1::AdamW& adamw = job.optimizer().adamw();
  if (job.optimizer().has_sgd() || adamw.betas_size() != 2) return std::nullopt;
  const int64_t batch = GlobalBatchOf(job);
  AdamSettings adam;
  adam.lr = adamw.lr();
  adam.beta1 = adamw.betas(0);
  adam.beta2 = adamw.betas(1);
  adam.eps = adamw.eps();
  adam.weight_decay = adamw.weight_decay();
  adam.samples = job.train().steps() * batch;
  const v1::Schedule& schedule = job.schedule();
  if (schedule.has_cosine()) {
    adam.decay = "cosine";
    adam.min_lr = adam.lr * schedule.cosine().min_lr_ratio();
    adam.warmup_samples = schedule.cosine().warmup_steps() * batch;
  } else if (schedule.has_linear()) {
    adam.decay = "linear";
    adam.min_lr = adam.lr * schedule.linear().min_lr_ratio();
    adam.warmup_samples = schedule.linear().warmup_steps() * batch;
  } else if (schedule.has_wsd()) {
    adam.decay = "WSD";
    adam.min_lr = adam.lr * schedule.wsd().min_lr_ratio();
    adam.warmup_samples = schedule.wsd().warmup_steps() * batch;
  } else {
    adam.warmup_samples = schedule.constant().warmup_steps() * batch;
  }
  return adam;
}

v1::JobSpec OfModel(const v1::Model& model) {
  v1::JobSpec job;
  *job.mutable_model() = model;
  return job;
}

// Reads the model from a config.json. For Hugging Face output, the same file is written with the new data
// type.
int ReadConfig(const std::string& path, ConversionOptions* conversion, Console* console) {
  v1::Model model;
  std::string text;
  if (const int code = ReadConfigModel(path, console, &model, &text); code != kExitOk) return code;
  conversion->model = ToModelConfig(model);
  conversion->spec = JsonOf(OfModel(model));
  const absl::StatusOr<std::string> config = RewriteHfConfig(text, conversion->type->name);
  if (!config.ok()) return ReportUsageError(absl::StrCat(path, ": ", config.status().message()), console);
  conversion->config = *config;
  return kExitOk;
}

// The spec of the job that wrote the checkpoint; without a model if the source does not contain a spec.
absl::StatusOr<v1::JobSpec> JobInside(const std::string& directory) {
  v1::JobSpec job;
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<TensorReader> reader, OpenStore(directory));
  FSDPD_ASSIGN_OR_RETURN(const std::string json, SpecInside(directory, *reader));
  if (json.empty()) return job;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // A newer release may have added fields.
  const auto read = google::protobuf::util::JsonStringToMessage(WithCurrentFieldNames(json), &job, options);
  if (!read.ok() || !IsValidModel(job.model())) {
    return absl::DataLossError(absl::StrCat(directory, ": fsdpd.spec is not the spec of a job"));
  }
  return job;
}

bool HasOnlyAdapters(const std::string& directory) {
  const absl::StatusOr<v1::JobSpec> inside = JobInside(directory);
  return (inside.ok() && inside->train().has_lora()) ||
         access(absl::StrCat(directory, "/", kPeftConfigName).c_str(), F_OK) == 0;
}

// Rejects a model file that contradicts the spec inside the checkpoint, if there is one.
int RejectContradictions(const v1::Model& inside, const std::string& file,
                         const ConversionOptions& conversion, Console* console) {
  if (inside.source_case() == v1::Model::SOURCE_NOT_SET || inside.has_plugin()) return kExitOk;
  const std::vector<std::string> found =
      ModelDifferences(ToModelConfig(inside), conversion.model, "in the checkpoint");
  for (const std::string& one : found)
    console->err << absl::StrCat(file, ": error: ", one, " [CHECKPOINT_ERROR]\n");
  return found.empty() ? kExitOk : kExitSpecRefused;
}

int TakeJob(const std::string& from, const v1::JobSpec& job, ConversionOptions* conversion,
            Console* console) {
  const v1::Model& model = job.model();
  if (model.has_plugin()) {
    return ReportUsageError(absl::StrCat(from, ": conversion is not supported for the model of a plug-in"),
                            console);
  }
  conversion->model = ToModelConfig(model);
  conversion->spec = JsonOf(job);
  conversion->adam = AdamOf(job);
  if (conversion->to != StoreFormat::kHf || conversion->adapters.has_value()) return kExitOk;
  const v1::InitialValues& initial = job.train().initial();
  const double deviation = initial.has_std() ? initial.std() : InitialConfig().deviation;
  const absl::StatusOr<std::string> config =
      MakeHfConfig(conversion->model, conversion->type->name, deviation);
  if (!config.ok()) return ReportUsageError(absl::StrCat(from, ": ", config.status().message()), console);
  conversion->config = *config;
  return kExitOk;
}

int ReadSpec(const std::string& path, ConversionOptions* conversion, Console* console) {
  v1::JobSpec job;
  const int code = ReadSpecModel(path, console, &job);
  return code == kExitOk ? TakeJob(path, job, conversion, console) : code;
}

int ReadModel(const CommandLine& line, ConversionOptions* conversion, Console* console) {
  if (!line.spec.empty() && !line.config.empty()) {
    return ReportUsageError("--config is not supported with --spec; remove one of them", console);
  }
  const absl::StatusOr<v1::JobSpec> inside = JobInside(line.file);
  if (!inside.ok()) return ReportCkptError(inside.status(), console);
  if (!conversion->adapters.has_value() && HasOnlyAdapters(line.file)) {
    return ReportUsageError(
        absl::StrCat(line.file,
                     ": has only LoRA adapters; use `fsdpctl ckpt merge` to write the merged "
                     "model, or --to peft to write the adapters"),
        console);
  }
  std::string file = !line.spec.empty() ? line.spec : line.config;
  const std::string source_config = absl::StrCat(line.file, "/", kHfConfigName);
  if (file.empty() && access(source_config.c_str(), F_OK) == 0) file = source_config;
  if (!file.empty()) {
    const int code =
        !line.spec.empty() ? ReadSpec(file, conversion, console) : ReadConfig(file, conversion, console);
    if (code != kExitOk) return code;
    // The job that wrote the moments has the authoritative optimizer settings.
    if (const std::optional<AdamSettings> adam = AdamOf(*inside)) conversion->adam = adam;
    return RejectContradictions(inside->model(), file, *conversion, console);
  }
  if (inside->model().source_case() != v1::Model::SOURCE_NOT_SET) {
    return TakeJob(line.file, *inside, conversion, console);
  }
  return ReportUsageError(
      absl::StrCat(line.file,
                   ": unknown model (the number of heads and positions is not stored, and there is no ",
                   kHfConfigName, "); add --config CONFIG.JSON, or --spec JOB.YAML of the job that wrote it"),
      console);
}

// The rank, scale and base model of adapters, from PEFT's configuration or from the spec of the job, which
// also has the model.
int ReadLora(const std::string& directory, LoraConfig* lora, BaseLabel* base, v1::Model* model,
             Console* console) {
  const std::string path = absl::StrCat(directory, "/", kPeftConfigName);
  if (access(path.c_str(), F_OK) == 0) {
    const absl::StatusOr<PeftConfig> config = PeftConfigOf(directory);
    if (!config.ok()) return ReportCkptError(config.status(), console);
    if (config->lora.rank == 0 || !config->unsupported.empty()) {
      const std::string& what = config->unsupported.empty() ? "r: invalid rank" : config->unsupported[0];
      return ReportCkptError(absl::UnimplementedError(absl::StrCat(path, ": ", what)), console);
    }
    *lora = config->lora;
    return kExitOk;
  }
  const absl::StatusOr<v1::JobSpec> job = JobInside(directory);
  if (!job.ok()) return ReportCkptError(job.status(), console);
  if (!job->train().has_lora()) {
    return ReportCkptError(absl::NotFoundError(absl::StrCat(
                               directory, ": is neither a checkpoint of a LoRA job nor a directory of PEFT")),
                           console);
  }
  *lora = ToLoraConfig(WithDefaults(*job, nullptr).train().lora());
  if (!(lora->rank > 0 && lora->rank <= kMaxLoraRank && lora->alpha > 0 && lora->alpha <= kMaxLoraAlpha)) {
    return ReportCkptError(
        absl::DataLossError(absl::StrCat(directory, ": fsdpd.spec has an invalid rank or alpha")), console);
  }
  *model = job->model();
  if (FormatOf(directory) == StoreFormat::kHf) return kExitOk;
  const absl::StatusOr<std::unique_ptr<DcpReader>> reader = DcpReader::Open(directory);
  if (!reader.ok()) return ReportCkptError(reader.status(), console);
  const absl::StatusOr<BaseLabel> recorded = ReadBaseModel(**reader);
  if (!recorded.ok()) return ReportCkptError(recorded.status(), console);
  *base = *recorded;
  // The checkpoint that the job read, if its base_model is a directory of them.
  if (!base->path.empty()) lora->base_model = base->path;
  return kExitOk;
}

// For --to peft: the adapters of a LoRA job's checkpoint.
int ReadAdapters(const std::string& directory, ConversionOptions* conversion, Console* console) {
  BaseLabel base;
  v1::Model model;
  conversion->adapters.emplace();
  if (const int code = ReadLora(directory, &*conversion->adapters, &base, &model, console); code != kExitOk)
    return code;
  if (model.source_case() == v1::Model::SOURCE_NOT_SET)
    return ReportUsageError(absl::StrCat(directory, ": is already a directory of PEFT; copy it"), console);
  if (std::holds_alternative<LlamaConfig>(ToModelConfig(model))) return kExitOk;
  return ReportUsageError(absl::StrCat(directory, ": is not of a model of the Llama family"), console);
}

int ReadFlags(const CommandLine& line, ConversionOptions* conversion, Console* console) {
  conversion->source = line.file;
  conversion->target = line.target;
  const bool hf = line.to == "hf", peft = line.to == "peft";
  conversion->to = hf || peft                ? StoreFormat::kHf
                   : line.to == "torch_dist" ? StoreFormat::kTorchDist
                                             : StoreFormat::kDcp;
  const bool native = conversion->to == StoreFormat::kDcp;
  const std::string dtype = !line.dtype.empty() ? line.dtype : hf ? "bfloat16" : "float32";
  if (native && dtype != "float32") {
    return ReportUsageError("--dtype: a native checkpoint supports only float32; remove --dtype", console);
  }
  conversion->type = FindTensorType(dtype);
  const absl::StatusOr<int64_t> bytes = ParseBytes(line.shard_bytes);
  if (!bytes.ok() || *bytes <= 0) {
    return ReportUsageError(
        absl::StrCat("--shard-bytes: invalid size '", line.shard_bytes, "'; use a positive size such as 5GB"),
        console);
  }
  if (peft && line.shard_bytes != CommandLine().shard_bytes)
    return ReportUsageError("--shard-bytes: is not supported with --to peft; remove --shard-bytes", console);
  conversion->file_bytes = *bytes;
  conversion->optimizer = !line.no_optimizer;
  conversion->resumes = true;
  conversion->anew = line.overwrite;
  if (peft) {
    if (const int code = ReadAdapters(line.file, conversion, console); code != kExitOk) return code;
  }
  return ReadModel(line, conversion, console);
}

// Progress line that is redrawn while Convert() runs on another thread.
class ProgressScreen {
 public:
  ProgressScreen(const ConversionProgress& progress, Console* console)
      : progress_(progress), console_(*console), begun_(console->clock->Now()) {}

  void Draw() {
    const int64_t of_tensors = progress_.of_tensors, of_bytes = progress_.of_bytes, bytes = progress_.bytes;
    if (!console_.err_terminal || of_tensors == 0) return;
    Clear();
    const double seconds = absl::ToDoubleSeconds(console_.clock->Now() - begun_);
    const double rate = seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
    std::string what = absl::StrCat(HumanBytes(bytes), " of ", HumanBytes(of_bytes), "  ",
                                    HumanBytes(static_cast<int64_t>(rate)), "/s");
    if (rate > 0)
      absl::StrAppend(&what, "  eta ", HumanSeconds(static_cast<double>(of_bytes - bytes) / rate));
    const auto number = static_cast<int>(std::min(of_tensors, progress_.tensors + 1));
    console_.err << StageBar(number, static_cast<int>(of_tensors), what, console_.err_width()) << std::flush;
    live_ = true;
  }

  void Clear() {
    if (live_) console_.err << "\r\x1b[2K" << std::flush;
    live_ = false;
  }

 private:
  const ConversionProgress& progress_;
  Console& console_;
  const absl::Time begun_;
  bool live_ = false;
};

absl::StatusOr<ConversionResult> ConvertWithProgress(const ConversionOptions& conversion, Console* console) {
  ConversionProgress progress;
  ProgressScreen screen(progress, console);
  std::future<absl::StatusOr<ConversionResult>> result = std::async(std::launch::async, [&] {
    return Convert(
        conversion, CkptThreads(), [console] { return IsInterrupted(*console); }, &progress);
  });
  while (result.wait_for(kRedraw) != std::future_status::ready) screen.Draw();
  screen.Draw();  // Also draws once for a short conversion.
  screen.Clear();
  return result.get();
}

v1::CheckpointConversion ToProto(const CommandLine& line, const ConversionOptions& conversion,
                                 const ConversionResult& result) {
  v1::CheckpointConversion proto;
  proto.set_source(ToUtf8(line.file));
  proto.set_target(ToUtf8(line.target));
  proto.set_format(line.to);
  proto.set_type(std::string(conversion.type->name));
  proto.set_tensors(result.tensors);
  proto.set_bytes(result.bytes);
  proto.set_files(result.files);
  for (const std::string& name : result.left_out) proto.add_omitted_tensors(ToUtf8(name));
  proto.set_overflowed_values(result.overflowed);
  for (const DcpViolation& fault : result.violations) {
    v1::CheckpointError* one = proto.add_errors();
    one->set_where(ToUtf8(fault.where));
    one->set_error(ToUtf8(fault.what));
  }
  proto.set_errors_omitted(result.violations.left_out());
  return proto;
}

std::string LeftOutText(const v1::CheckpointConversion& result) {
  const int count = result.omitted_tensors_size();
  std::string text = absl::StrCat("note: omitted, not parameters of the model: ");
  for (int i = 0; i < std::min<int>(count, kMaxOmittedNames); ++i) {
    absl::StrAppend(&text, i > 0 ? ", " : "", Escaped(result.omitted_tensors(i)));
  }
  const int more = count - static_cast<int>(kMaxOmittedNames);
  return more > 0 ? absl::StrCat(text, " and ", more, " more") : text;
}

int PrintResult(const CommandLine& line, const v1::CheckpointConversion& result, Console* console) {
  for (const v1::CheckpointError& fault : result.errors()) {
    console->err << absl::StrCat(line.file, ": error: ", Escaped(fault.where()), ": ", Escaped(fault.error()),
                                 " [CHECKPOINT_CORRUPT]\n");
  }
  if (result.errors_omitted() > 0) {
    console->err << absl::StrCat(line.file, ": error: and ", result.errors_omitted(), " more defects\n");
  }
  const bool done = result.errors().empty();
  if (done && !result.omitted_tensors().empty())
    console->err << line.file << ": " << LeftOutText(result) << "\n";
  if (result.overflowed_values() > 0) {
    console->err << absl::StrCat(line.target, ": warning: ", result.overflowed_values(),
                                 " values exceed the range of ", result.type(), " and became infinite\n");
  }
  if (line.output != "table") {
    console->out << Rendered(result, line.output);
  } else if (done) {
    console->out << absl::StrCat(line.target, ": ", result.tensors(), " tensors, ",
                                 HumanBytes(result.bytes()), " in ", result.files(),
                                 result.files() == 1 ? " file" : " files", ", ", result.type(), "\n");
  }
  return done ? kExitOk : kExitDamaged;
}

}  // namespace

// Reports the files that an interrupted conversion left for the next run, or that this run reused.
void ReportPartialFiles(const CommandLine& line, const absl::StatusOr<ConversionResult>& result,
                        Console* console) {
  if (result.ok()) {
    if (result->files_found == 0) return;
    console->err << absl::StrCat(
        line.target, ": note: resumed an interrupted conversion: ", result->files_found, " of ",
        result->files, " files, ", HumanBytes(result->bytes_found), ", were complete\n");
    return;
  }
  std::string part = line.target;
  while (part.size() > 1 && part.back() == '/') part.pop_back();
  part += ".part";
  const bool rejected = absl::IsFailedPrecondition(result.status()) || absl::IsAlreadyExists(result.status());
  if (rejected || access(absl::StrCat(part, "/", kJournalName).c_str(), F_OK) != 0) return;
  console->err << absl::StrCat(line.target, ": note: complete files remain in ", part,
                               "; run the same command to resume\n");
}

int RunCkptConvert(const CommandLine& line, Console* console) {
  ConversionOptions conversion;
  if (const int code = ReadFlags(line, &conversion, console); code != kExitOk) return code;
  const absl::StatusOr<ConversionResult> result = ConvertWithProgress(conversion, console);
  ReportPartialFiles(line, result, console);
  if (!result.ok()) return ReportCkptError(result.status(), console);
  return PrintResult(line, ToProto(line, conversion, *result), console);
}

int RunCkptMerge(const CommandLine& given, Console* console) {
  CommandLine line = given;
  LoraConfig lora;
  BaseLabel base;
  v1::Model trained;
  if (const int code = ReadLora(given.file, &lora, &base, &trained, console); code != kExitOk) return code;
  line.file = !given.base.empty() ? given.base : lora.base_model;
  if (line.file.empty()) {
    return ReportUsageError(absl::StrCat(given.file, ": does not name its base model; add --base DIR"),
                            console);
  }
  if (const int code = ResolveCheckpoint(&line.file, console); code != kExitOk) return code;
  if (HasOnlyAdapters(line.file))
    return ReportUsageError(
        absl::StrCat("--base: ", line.file, " has only LoRA adapters; use the model that they belong to"),
        console);
  line.to = "hf";
  line.no_optimizer = true;
  ConversionOptions conversion;
  if (const int code = ReadFlags(line, &conversion, console); code != kExitOk) return code;
  if (const int code = RejectContradictions(trained, line.file, conversion, console); code != kExitOk)
    return code;
  if (!std::holds_alternative<LlamaConfig>(conversion.model))
    return ReportUsageError(absl::StrCat(line.file, ": is not a model of the Llama family"), console);
  const absl::StatusOr<std::unique_ptr<LoraMerge>> merge =
      LoraMerge::Open(given.file, conversion.model, lora);
  if (!merge.ok()) return ReportCkptError(merge.status(), console);
  const absl::Status same = CheckBase(base, line.file, conversion.model, CkptThreads(),
                                      [console] { return IsInterrupted(*console); });
  if (!same.ok()) return ReportCkptError(same, console);
  conversion.merge = merge->get();
  const absl::StatusOr<ConversionResult> result = ConvertWithProgress(conversion, console);
  ReportPartialFiles(line, result, console);
  if (!result.ok()) return ReportCkptError(result.status(), console);
  return PrintResult(line, ToProto(line, conversion, *result), console);
}

}  // namespace fsdpd
