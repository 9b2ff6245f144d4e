#include "fsdp/checkpoint/convert/megatron_files.h"

#include <absl/strings/str_cat.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fsdp/checkpoint/format/durable_file.h"
#include "fsdp/checkpoint/format/pickle_writer.h"
#include "fsdp/checkpoint/format/torch_save.h"
#include "fsdp/checkpoint/format/zip.h"
#include "fsdp/checkpoint/names/job_keys.h"
#include "fsdp/data/input_file.h"

namespace fsdpd {
namespace {

constexpr char kMetadata[] =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", )"
    R"("common_backend_version": 1})";
// Format with each parameter as a whole tensor, independent of the number of ranks.
constexpr char kFullyReshardable[] = "fully_reshardable";
constexpr char kKept[] = "fsdpd";

// A dict, written key by key.
class Dict {
 public:
  explicit Dict(PickleWriter* writer) : writer_(*writer) { writer_.BeginDict(); }
  ~Dict() { writer_.SetItems(); }
  Dict(const Dict&) = delete;
  Dict& operator=(const Dict&) = delete;

  PickleWriter* Key(absl::string_view key) {
    writer_.Text(key);
    return &writer_;
  }

 private:
  PickleWriter& writer_;
};

void WriteGroup(const AdamSettings& adam, double decays, int64_t steps, PickleWriter* writer) {
  Dict group(writer);
  group.Key("wd_mult")->Float(decays);
  group.Key("lr_mult")->Float(1);
  group.Key("is_expert_parallel")->Bool(false);
  group.Key("is_decoupled_lr")->Bool(false);
  group.Key("default_config")->Bool(true);
  group.Key("max_lr")->Float(adam.lr);
  group.Key("min_lr")->Float(adam.min_lr);
  group.Key("lr")->Float(adam.lr);
  group.Key("betas")->Float(adam.beta1);
  writer->Float(adam.beta2);
  writer->TupleOf(2);
  group.Key("eps")->Float(adam.eps);
  group.Key("weight_decay")->Float(adam.weight_decay * decays);
  group.Key("bias_correction")->Bool(true);
  group.Key("step")->Int(steps);
}

// Megatron-Core identifies its groups by wd_mult, lr_mult and two flags. Its default groups are norms and
// biases, without weight decay, and everything else.
void WriteOptimizer(const AdamSettings& adam, int64_t steps, PickleWriter* writer) {
  Dict outer(writer);
  outer.Key("optimizer");
  {
    Dict optimizer(writer);
    optimizer.Key("param_groups")->BeginList();
    WriteGroup(adam, 1, steps, writer);
    WriteGroup(adam, 0, steps, writer);
    writer->Appends();
  }
  outer.Key("param_state_sharding_type")->Text(kFullyReshardable);
}

void WriteScheduler(const AdamSettings& adam, int64_t samples, PickleWriter* writer) {
  Dict scheduler(writer);
  scheduler.Key("max_lr")->Float(adam.lr);
  scheduler.Key("lr_warmup_steps")->Int(adam.warmup_samples);
  scheduler.Key("num_steps")->Int(samples);
  scheduler.Key("lr_decay_style")->Text(adam.decay);
  scheduler.Key("lr_decay_steps")->Int(adam.samples);
  scheduler.Key("min_lr")->Float(adam.min_lr);
  scheduler.Key("start_wd")->Float(adam.weight_decay);
  scheduler.Key("end_wd")->Float(adam.weight_decay);
  scheduler.Key("wd_incr_style")->Text("constant");
  scheduler.Key("wd_incr_steps")->Int(adam.samples);
}

// The loader requests tensors according to these entries.
void WriteContent(bool optimizer, PickleWriter* writer) {
  Dict content(writer);
  content.Key("singleton_local_shards")->Bool(false);
  content.Key("non_homogeneous_layers")->Bool(false);
  if (!optimizer) return;
  content.Key("chained_optim_avoid_prefix")->Bool(true);
  content.Key("distrib_optim_sharding_type")->Text(kFullyReshardable);
  content.Key("distrib_optim_fully_reshardable_mem_efficient")->Bool(false);
}

std::string CommonOf(const MegatronCommon& common, const std::optional<AdamSettings>& adam) {
  PickleWriter writer;
  {
    Dict root(&writer);
    root.Key(kIterationKey)->Int(common.iteration.value_or(0));
    root.Key(kVersionKey)->Float(kMegatronVersion);
    WriteContent(adam.has_value(), root.Key("content_metadata"));
    if (adam.has_value()) {
      WriteOptimizer(*adam, common.steps.value_or(0), root.Key("optimizer"));
      if (common.samples.has_value()) WriteScheduler(*adam, *common.samples, root.Key("opt_param_scheduler"));
    }
    if (!common.kept.empty()) {
      Dict kept(root.Key(kKept));
      for (const auto& [name, value] : common.kept) WritePortable(value, kept.Key(name));
    }
  }
  return TorchSaved(writer.Take());
}

// The value at a path of keys; null if absent.
const PickleValue* FindIn(const PickleValue& root, const std::vector<absl::string_view>& keys) {
  const PickleValue* value = &root;
  for (const absl::string_view key : keys) {
    if (value != nullptr) value = value->Find(key);
  }
  return value;
}

std::optional<int64_t> CountOf(double count) {
  if (!(count >= 0 && count <= kMaxCount) || count != std::floor(count)) return std::nullopt;
  return static_cast<int64_t>(count);
}

// An integer, or a float with an integer value, as torch's optimizers count steps.
std::optional<int64_t> CountOf(const PickleValue* value) {
  if (value == nullptr) return std::nullopt;
  if (value->kind == PickleKind::kInt) return CountOf(static_cast<double>(value->integer));
  return value->kind == PickleKind::kFloat ? CountOf(value->real) : std::nullopt;
}

// The element of a scalar float32 tensor, whose data is stored next to the pickle.
std::optional<int64_t> ScalarOf(const PickleValue* value, const InputFile& file) {
  if (value == nullptr) return std::nullopt;
  float number = 0;
  const absl::StatusOr<SavedTensor> tensor = FindSavedTensor(*value, file.size(), file.Reader());
  if (!tensor.ok() || tensor->type->name != "float32" || tensor->storage.size != sizeof(number)) return {};
  const absl::StatusOr<std::string> bytes = ReadZipMember(tensor->storage, file.Reader(), sizeof(number));
  if (!bytes.ok()) return std::nullopt;
  std::memcpy(&number, bytes->data(), sizeof(number));
  return CountOf(number);
}

// The step count of the groups, which must agree: Megatron-Core's optimizers have one count.
std::optional<int64_t> StepsOfGroups(const PickleValue* groups) {
  if (groups == nullptr || groups->kind != PickleKind::kList) return std::nullopt;
  std::optional<int64_t> steps;
  for (const PickleValue* group : groups->items) {
    const std::optional<int64_t> of_group = CountOf(group->Find("step"));
    if (!of_group.has_value()) continue;
    if (steps.has_value() && *steps != *of_group) return std::nullopt;
    steps = of_group;
  }
  return steps;
}

std::optional<int64_t> StepsOf(const PickleValue& root, const InputFile& file) {
  // A mixed-precision optimizer contains torch's; an fp32 optimizer is torch's.
  for (const std::vector<absl::string_view>& inner :
       {std::vector<absl::string_view>{"optimizer", "optimizer"}, {"optimizer"}}) {
    const PickleValue* optimizer = FindIn(root, inner);
    if (optimizer == nullptr) continue;
    const PickleValue* common = FindIn(*optimizer, {"state", "common_step"});
    std::optional<int64_t> steps = CountOf(common);
    if (!steps.has_value()) steps = ScalarOf(common, file);
    if (!steps.has_value()) steps = StepsOfGroups(optimizer->Find("param_groups"));
    if (steps.has_value()) return steps;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<MegatronCommon> ReadMegatronCommon(const std::string& directory) {
  const absl::StatusOr<std::unique_ptr<InputFile>> file =
      InputFile::Open(absl::StrCat(directory, "/", kMegatronCommonName));
  if (absl::IsNotFound(file.status())) return MegatronCommon();
  if (!file.ok()) return file.status();
  const absl::StatusOr<Pickle> pickle = ReadSavedValue((*file)->size(), (*file)->Reader());
  if (!pickle.ok()) {
    return absl::Status(pickle.status().code(),
                        absl::StrCat((*file)->path(), ": ", pickle.status().message()));
  }
  const PickleValue& root = pickle->root();
  MegatronCommon common;
  common.iteration = CountOf(root.Find(kIterationKey));
  common.samples = CountOf(FindIn(root, {"opt_param_scheduler", "num_steps"}));
  common.steps = StepsOf(root, **file);
  const PickleValue* kept = root.Find(kKept);
  for (size_t i = 0; kept != nullptr && kept->kind == PickleKind::kDict && i + 1 < kept->items.size();
       i += 2) {
    const PickleValue& name = *kept->items[i];
    std::optional<PortableValue> value = ToPortable(*kept->items[i + 1]);
    if (name.kind == PickleKind::kString && IsUtf8(name.text) && value.has_value())
      common.kept[std::string(name.text)] = *std::move(value);
  }
  return common;
}

absl::Status WriteMegatronFiles(const std::string& directory, const MegatronCommon& common,
                                const std::optional<AdamSettings>& adam) {
  FSDPD_RETURN_IF_ERROR(ReplaceFile(directory, kMegatronCommonName, CommonOf(common, adam)));
  FSDPD_RETURN_IF_ERROR(ReplaceFile(directory, kMegatronMetadataName, kMetadata));
  return SyncDirectory(directory);
}

}  // namespace fsdpd
