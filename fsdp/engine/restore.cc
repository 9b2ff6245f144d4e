#include "fsdp/engine/restore.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/parallel_for.h"
#include "base/spec_text/located_violation.h"
#include "base/text.h"
#include "fsdp/checkpoint/hf/hf_contents.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/hf/peft_config.h"
#include "fsdp/checkpoint/job/origin_check.h"
#include "fsdp/checkpoint/job/start_kind.h"
#include "fsdp/checkpoint/names/job_keys.h"
#include "fsdp/engine/bad_step.h"
#include "fsdp/engine/error_cause.h"
#include "fsdp/optimizer/fp8_moments.h"
#include "fsdp/plan/model/lora_facts.h"
#include "fsdp/torch/scalar_type.h"
#include "fsdp/torch/serial_copy.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

// As for initialization: large enough to amortize a call, small next to a rank's shard.
constexpr int64_t kChunkElements = 1 << 20;
// Limits of such lists, for readability and for the size of the messages that carry them.
constexpr size_t kMaxDifferences = 50;
constexpr size_t kMaxNoteBytes = 512;
constexpr size_t kMaxNamed = 3;

at::ScalarType ScalarOf(const DcpTensor& tensor) {
  if (tensor.type_name == "bfloat16") return at::kBFloat16;
  if (tensor.type_name == "float16") return at::kHalf;
  FSDPD_CHECK(tensor.type_name == "float32");  // DifferencesOf refuses others.
  return at::kFloat;
}

struct Chunk {
  int bucket = 0;
  int slot = 0;
  int moment = 0;
  ElementRun run;  // Within the whole parameter.
  int64_t main_begin = 0;
};

std::vector<Chunk> MomentChunks(const Plan& plan, const MeshPosition& position) {
  std::vector<Chunk> chunks;
  for (size_t b = 0; b < plan.layout.buckets.size(); ++b) {
    const Bucket& bucket = plan.layout.buckets[b];
    const int moments = bucket.trainable ? plan.spec.optimizer.moments() : 0;
    const int64_t slice = position.IndexIn(bucket.groups.slices);
    for (const BucketPiece& piece : PiecesOf(bucket, MainRange(bucket, position))) {
      const ParamSlot& slot = bucket.params[piece.slot];
      int64_t main_begin = piece.range_begin;
      for (const ElementRun& run :
           FullRuns(slot.shape, slot.partition, slice, piece.param_begin, piece.elements)) {
        for (int64_t done = 0; done < run.elements; done += kChunkElements) {
          const ElementRun part = {run.begin + done, std::min(kChunkElements, run.elements - done)};
          for (int moment = 0; moment < moments; ++moment)
            chunks.push_back({static_cast<int>(b), piece.slot, moment, part, main_begin + done});
        }
        main_begin += run.elements;
      }
    }
  }
  return chunks;
}

bool HasAdapters(const DcpIndex& index) {
  return std::any_of(index.tensors.begin(), index.tensors.end(), [](const DcpTensor& tensor) {
    return absl::StartsWith(tensor.name, kNativePrefix) && absl::EndsWith(tensor.name, LoraAName(""));
  });
}

absl::Status AdaptersError(const std::string& path, bool wanted) {
  return absl::FailedPreconditionError(absl::StrCat(
      path, wanted ? ": has no adapters; set train.lora.base_model for the weights of the model"
                   : ": has only LoRA adapters; load them with train.lora, or merge them into the model with "
                     "`fsdpctl ckpt merge`"));
}

// Whether a Hugging Face directory has the weights of a model, besides adapters.
bool HasModel(const std::string& path) {
  const absl::StatusOr<HfContents> contents = LoadHfContents(path);
  return contents.ok() && !contents->files.empty() && contents->files[0].name != kPeftWeightsName;
}

bool HasAdapterWeights(const std::string& path) {
  return access(absl::StrCat(path, "/", kPeftWeightsName).c_str(), F_OK) == 0;
}

// Bits of the exponent are all set in infinities and NaN.
bool IsFinite(const at::Tensor& values) {
  constexpr uint32_t kExponent = 0x7f800000;
  const auto* bits = reinterpret_cast<const uint32_t*>(values.const_data_ptr<float>());
  uint32_t found = 0;  // No early exit: the compiler vectorizes the loop.
  for (int64_t i = 0; i < values.numel(); ++i) found |= (bits[i] & kExponent) == kExponent ? 1 : 0;
  return found == 0;
}

absl::Status DifferentJobError(const std::string& path, const char* what,
                               std::vector<std::string> differences) {
  if (const size_t count = differences.size(); count > kMaxDifferences) {
    differences.resize(kMaxDifferences);
    differences.push_back(absl::StrCat("and ", count - kMaxDifferences, " more"));
  }
  return absl::FailedPreconditionError(absl::StrCat("the checkpoint ", path, " does not match this job's ",
                                                    what, ":\n  ", absl::StrJoin(differences, "\n  ")));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Restore>> Restore::Open(const Plan& plan, const std::string& path, bool own) {
  std::unique_ptr<Restore> restore(new Restore(plan));
  restore->own_ = own;
  if (plan.spec.scales_loss()) restore->state_.loss_scale = plan.spec.loss_scale.initial;
  StartKind kind = StartKind::kTraining;
  if (!own) {
    FSDPD_ASSIGN_OR_RETURN(kind, KindOfStart(path, plan.spec.model));
    FSDPD_ASSIGN_OR_RETURN(const bool only, TakesParametersOnly(plan.spec.checkpoint, path, kind));
    if (only) restore->part_ = LoadedPart::kParameters;
  }
  FSDPD_RETURN_IF_ERROR(kind == StartKind::kForeign ? restore->OpenForeign(path)
                                                    : restore->OpenNative(path, own));
  const int64_t step = restore->state_.step, steps = plan.spec.steps;
  if (own && step > steps) {
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint ", path, " is at step ", step, ", beyond train.steps (", steps, ")"));
  }
  if (!own && step >= steps) {
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint ", path, " is at step ", step, " and train.steps is ", steps,
                     ": no steps left; raise train.steps or train.epochs, which count from the start of the "
                     "checkpoint's run, or "
                     "set checkpoint.load_optimizer: false to start at step 1 "
                     "with its parameters"));
  }
  return restore;
}

absl::StatusOr<std::unique_ptr<Restore>> Restore::OpenBaseModel(const Plan& plan, const std::string& path) {
  std::unique_ptr<Restore> restore(new Restore(plan));
  restore->part_ = LoadedPart::kBaseModel;
  const auto open = [&]() -> absl::Status {
    FSDPD_ASSIGN_OR_RETURN(const StartKind kind, KindOfStart(path, plan.spec.model));
    return kind == StartKind::kForeign ? restore->OpenForeign(path)
                                       : restore->OpenNative(path, /*own=*/false);
  };
  if (const absl::Status status = open(); !status.ok()) return Annotated(status, "train.lora.base_model: ");
  return restore;
}

absl::Status Restore::OpenNative(const std::string& path, bool own) {
  FSDPD_ASSIGN_OR_RETURN(native_, DcpReader::Open(path));
  FSDPD_ASSIGN_OR_RETURN(const std::string spec, ReadJobSpec(*native_));
  OriginDifferences origin = CompareSpec(spec, plan_.spec);
  if (spec.empty())
    AddNote("it does not record its model: heads, positions and norms could not be compared with this job's");
  std::vector<std::string> differences = std::move(origin.model);
  const bool wants_adapters = plan_.spec.lora.enabled() && part_ != LoadedPart::kBaseModel;
  if (wants_adapters != HasAdapters(native_->index())) return AdaptersError(path, wants_adapters);
  for (std::string& each : DifferencesOf(plan_.spec, plan_.full_layout(), native_->index(), part_))
    differences.push_back(std::move(each));
  if (!differences.empty()) {
    return DifferentJobError(path, parameters_only() ? "model" : "model and optimizer",
                             std::move(differences));
  }
  if (part_ != LoadedPart::kBaseModel) {
    FSDPD_ASSIGN_OR_RETURN(base_model_, ReadBaseModel(*native_));
  }
  if (parameters_only()) return absl::OkStatus();
  if (!own) {
    for (const std::string& each : origin.run) AddNote(each);
  }
  if (const std::vector<std::string> unread = UnreadState(plan_.spec, native_->index()); !unread.empty())
    AddNote(
        absl::StrCat("ignored state that this job's optimizer does not have: ", absl::StrJoin(unread, ", ")));
  const absl::StatusOr<TrainingState> state = ReadState(*native_, plan_.spec);
  if (!state.ok())
    return absl::Status(state.status().code(), absl::StrCat(path, ": ", state.status().message()));
  state_ = *state;
  FSDPD_ASSIGN_OR_RETURN(data_, ReadJobData(*native_));
  return absl::OkStatus();
}

void Restore::CompareData(const std::vector<std::string>& here) {
  const std::vector<std::string> changed = fsdpd::CompareData(data_, here);
  for (size_t i = 0; i < std::min(changed.size(), kMaxNamed); ++i) AddNote(changed[i]);
  if (changed.size() > kMaxNamed)
    AddNote(absl::StrCat(changed.size() - kMaxNamed, " more token or mask files have changed"));
}

absl::Status Restore::CheckBaseModel(const BaseLabel& here) {
  if (base_model_.empty()) return absl::OkStatus();
  const auto is_nf4 = [](const BaseLabel& label) { return absl::EndsWith(label.type, kNf4Suffix); };
  if (is_nf4(base_model_) != is_nf4(here)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "train.lora.base_type: the adapters were trained with frozen weights in ", base_model_.type, " (got ",
        here.type, "); write base_type: ", is_nf4(base_model_) ? "nf4" : "compute",
        ", or convert the checkpoint with `fsdpctl ckpt convert --to peft` and load that"));
  }
  if (base_model_.type != here.type) {
    AddNote(absl::StrCat("the frozen weights were stored in ", base_model_.type, " there, and are in ",
                         here.type, " here: they could not be compared"));
    return absl::OkStatus();
  }
  if (base_model_.hash == here.hash) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("train.lora.base_model: the adapters were trained with other frozen weights (got ",
                   here.Text(), ", want ", base_model_.Text(), "); ",
                   own_ ? "restore these weights, or start a new job"
                        : "use the same base model, or leave checkpoint.load out"));
}

// Adapters of PEFT.
absl::Status Restore::OpenPeft(const std::string& path) {
  const absl::StatusOr<PeftConfig> read = PeftConfigOf(path);
  if (absl::IsNotFound(read.status()) && HasAdapterWeights(path)) {
    return absl::FailedPreconditionError(absl::StrCat(path, "/", kPeftConfigName,
                                                      ": file does not exist; copy it from where PEFT saved ",
                                                      kPeftWeightsName));
  }
  if (absl::IsNotFound(read.status())) return AdaptersError(path, /*wanted=*/true);
  FSDPD_RETURN_IF_ERROR(read.status());
  if (read->dropout > 0)
    AddNote(absl::StrCat("ignored lora_dropout ", read->dropout, ": adapters have no dropout here"));
  std::vector<std::string> differences = DifferencesOf(*read, plan_.spec.lora);
  for (std::string& each : differences) each = absl::StrCat(kPeftConfigName, ": ", each);
  if (!differences.empty()) return DifferentJobError(path, "adapters", std::move(differences));
  FSDPD_ASSIGN_OR_RETURN(foreign_, ParamSource::OpenAdapters(path, plan_.spec.model, plan_.spec.lora));
  FSDPD_ASSIGN_OR_RETURN(traits_, foreign_->Traits());
  if (foreign_->violations().empty()) return absl::OkStatus();
  differences.push_back("train.lora.targets: must be the matrices that the adapters are of");
  for (const DcpViolation& violation : foreign_->violations())
    differences.push_back(absl::StrCat(violation.where, ": ", violation.what));
  return DifferentJobError(path, "adapters", std::move(differences));
}

absl::Status Restore::OpenForeign(const std::string& path) {
  if (plan_.spec.lora.enabled() && part_ != LoadedPart::kBaseModel) return OpenPeft(path);
  if (!absl::IsNotFound(PeftConfigOf(path).status()) && !HasModel(path))
    return AdaptersError(path, /*wanted=*/false);
  FSDPD_ASSIGN_OR_RETURN(foreign_, ParamSource::Open(path, plan_.spec.model));
  FSDPD_ASSIGN_OR_RETURN(traits_, foreign_->Traits());
  FSDPD_ASSIGN_OR_RETURN(std::optional<std::vector<std::string>> config,
                         CompareHfConfig(path, plan_.spec.model));
  std::vector<std::string> differences;
  for (std::string& each : config.value_or(std::vector<std::string>()))
    differences.push_back(absl::StrCat(kHfConfigName, ": ", each));
  if (!differences.empty()) {
    differences.push_back(absl::StrCat("set `model: {hf_config: ", path, "/", kHfConfigName,
                                       "}` in the spec to use that model"));
  }
  FSDPD_ASSIGN_OR_RETURN(const std::string spec, SpecInside(path, foreign_->reader()));
  OriginDifferences origin = CompareSpec(spec, plan_.spec);
  for (std::string& each : origin.model) differences.push_back(std::move(each));
  for (const DcpViolation& violation : foreign_->violations())
    differences.push_back(absl::StrCat(violation.where, ": ", violation.what));
  if (!differences.empty()) return DifferentJobError(path, "model", std::move(differences));
  if (!config.has_value() && spec.empty()) {
    AddNote(absl::StrCat("it has no ", kHfConfigName,
                         ": heads, positions and norms could not be compared with this job's"));
  }
  if (!foreign_->no_main().empty()) {
    AddNote(absl::StrCat("ignored the optimizer's main parameters and read the model's rounded ones: ",
                         foreign_->no_main()));
  }
  const std::vector<std::string>& left_out = foreign_->left_out();
  if (left_out.empty()) return absl::OkStatus();
  const size_t named = std::min(left_out.size(), kMaxNamed);
  const std::string more =
      left_out.size() > named ? absl::StrCat(" and ", left_out.size() - named, " more") : "";
  AddNote(absl::StrCat(
      "ignored tensors that are not parameters of the model: ",
      absl::StrJoin(left_out.begin(), left_out.begin() + static_cast<std::ptrdiff_t>(named), ", "), more));
  return absl::OkStatus();
}

void Restore::AddNote(const std::string& note) {
  if (notes_.size() < kMaxStartNotes) notes_.push_back(CutText(Escaped(note), kMaxNoteBytes));
}

InitialValues Restore::Initial() const {
  return [this](int unit, int param, int64_t begin, int64_t elements) {
    const UnitFacts& facts = plan_.model.units[unit];
    const std::string name = FullName(facts, facts.params[param]);
    const at::Tensor values =
        foreign_ != nullptr ? ReadForeign(name, begin, elements) : ReadNative(MainKey(name), begin, elements);
    if (!IsFinite(values)) {
      MutexLock lock(&mutex_);
      if (not_finite_.empty()) not_finite_ = name;
    }
    return values;
  };
}

std::vector<std::string> Restore::notes() const {
  std::vector<std::string> notes = notes_;
  MutexLock lock(&mutex_);
  if (!not_finite_.empty()) {
    notes.push_back(absl::StrCat(part_ == LoadedPart::kBaseModel ? "train.lora.base_model: " : "",
                                 not_finite_, " contains NaN or infinite numbers"));
  }
  return notes;
}

at::Tensor Restore::ReadStored(const std::string& key, int64_t begin, int64_t elements) const {
  const DcpTensor* tensor = native_->FindTensor(key);
  FSDPD_CHECK(tensor != nullptr);
  const at::Tensor values = at::empty({elements}, at::TensorOptions().dtype(ScalarOf(*tensor)));
  const absl::Status status = native_->ReadRun(*tensor, begin, elements, values.mutable_data_ptr());
  return status.ok() ? values : Failed(status, elements);
}

at::Tensor Restore::ReadNative(const std::string& key, int64_t begin, int64_t elements) const {
  return SerialCast(ReadStored(key, begin, elements), at::kFloat);
}

at::Tensor Restore::ReadForeign(const std::string& param, int64_t begin, int64_t elements) const {
  const at::Tensor values = at::empty({elements}, at::TensorOptions().dtype(at::kFloat));
  const absl::Status status = foreign_->ReadRun(param, begin, elements, values.mutable_data_ptr<float>());
  return status.ok() ? values : Failed(status, elements);
}

at::Tensor Restore::QuantizeMoments(const at::Tensor& numbers, int moment, const std::string& key) const {
  const double largest = LargestMoment(moment);
  const double found = LargestMagnitude(numbers);
  if (found <= largest) return NearestMoments(numbers, moment);
  const std::string why =
      std::isnan(found)
          ? absl::StrCat(key, " contains NaN")
          : absl::StrCat(
                key, " has values beyond ", largest,
                ", the maximum of precision.moments: fp8 (its gradients were not clipped as in this job)");
  const absl::Status beyond = absl::FailedPreconditionError(
      absl::StrCat(why, "; set precision.moments: bf16, or checkpoint.load_optimizer: false"));
  // Permanent: another attempt would read the same file.
  const absl::Status blamed = WithCause(v1::ErrorClass::KIND_CONFIGURATION, /*permanent=*/true, beyond);
  return NearestMoments(Failed(blamed, numbers.numel()), moment);
}

at::Tensor Restore::Failed(const absl::Status& status, int64_t elements) const {
  MutexLock lock(&mutex_);
  first_error_.Update(status);
  return at::zeros({elements}, at::TensorOptions().dtype(at::kFloat));
}

absl::Status Restore::FirstError() const {
  MutexLock lock(&mutex_);
  return first_error_;
}

absl::Status Restore::Finish(const MeshPosition& position, const ShardedParams& params) const {
  if (parameters_only()) {
    FSDPD_RETURN_IF_ERROR(FirstError());
    return foreign_ != nullptr ? foreign_->CheckUnchanged() : absl::OkStatus();
  }
  const std::vector<std::string> names = MomentNames(plan_.spec.optimizer);
  const std::vector<Chunk> chunks = MomentChunks(plan_, position);
  const auto read = [&](const Chunk& chunk) {
    const at::NoGradGuard no_grad;  // The mode is thread-local.
    const Bucket& bucket = plan_.layout.buckets[chunk.bucket];
    const std::string key = OptimizerKey(ParamName(plan_.layout, bucket, chunk.slot), names[chunk.moment]);
    const at::Tensor to =
        params.bucket(chunk.bucket).moments[chunk.moment].narrow(0, chunk.main_begin, chunk.run.elements);
    at::Tensor numbers = ReadStored(key, chunk.run.begin, chunk.run.elements);
    const bool eight_bits = bucket.types.moment == DType::kFp8;
    if (!eight_bits || numbers.scalar_type() != at::kBFloat16) numbers = SerialCast(numbers, at::kFloat);
    SerialCopy(
        eight_bits ? QuantizeMoments(numbers, chunk.moment, key) : SerialCast(numbers, to.scalar_type()), to);
    return absl::OkStatus();
  };
  FSDPD_RETURN_IF_ERROR(CatchTorch([&] {
    FSDPD_RETURN_IF_ERROR(ParallelFor(chunks.size(), at::get_num_threads(),
                                      [&](size_t c) { return CatchTorch([&] { return read(chunks[c]); }); }));
    if (!chunks.empty()) {
      const at::Device device = params.bucket(chunks[0].bucket).moments[0].device();
      // The copies ran on the default stream, which is not ordered with the lanes.
      if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
    }
    return absl::OkStatus();
  }));
  return FirstError();
}

}  // namespace fsdpd
