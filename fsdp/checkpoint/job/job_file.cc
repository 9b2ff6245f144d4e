#include "fsdp/checkpoint/job/job_file.h"

#include <absl/container/flat_hash_set.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/spec_text/located_violation.h"
#include "fsdp/checkpoint/format/portable_values.h"

namespace fsdpd {
namespace {

// Larger than the window of norms and the number of steps that may be skipped.
constexpr size_t kMaxItems = 4096;

const TensorType* TypeOf(DType dtype) {
  if (dtype == DType::kFp32) return FindTensorType("float32");
  if (dtype == DType::kBf16) return FindTensorType("bfloat16");
  return dtype == DType::kFp16 ? FindTensorType("float16") : nullptr;
}

// Written only for jobs with such steps, so that other checkpoints keep their format.
void AddBadSteps(const TrainingState& state, std::vector<DcpSmall>* values) {
  std::vector<PortableValue> norms;
  for (const std::optional<float>& norm : state.grad_norms)
    norms.push_back(norm.has_value() ? PortableValue{double{*norm}} : PortableValue{});
  const auto list_of = [](const std::vector<int64_t>& steps) {
    std::vector<PortableValue> list;
    for (const int64_t step : steps) list.push_back({step});
    return list;
  };
  for (const auto& [key, list] : {std::make_pair(kGradNormsKey, norms),
                                  std::make_pair(kSkippedNonfiniteKey, list_of(state.skipped_nonfinite)),
                                  std::make_pair(kSkippedSpikesKey, list_of(state.skipped_spikes))}) {
    if (!list.empty()) values->push_back({key, SavedPortable({list})});
  }
}

std::vector<DcpSmall> ValuesOf(const Spec& spec, const Layout& layout, const TrainingState& state,
                               const JobLabel& label) {
  std::vector<DcpSmall> values;
  const auto add = [&values](std::string name, PortableValue value) {
    values.push_back({std::move(name), SavedPortable(value)});
  };
  add(kIterationKey, {state.step});
  add(kVersionKey, {kMegatronVersion});
  add(kSchedulerSamplesKey, {state.samples});
  add(kJobKey, {label.job});
  add(kSpecKey, {label.spec});
  add(kSamplesKey, {state.samples});
  add(kSeedKey, {static_cast<int64_t>(spec.seed)});
  add(kStepsTakenKey, {state.steps_taken});
  add(kLossScaleKey, {state.loss_scale});
  add(kGoodStepsKey, {state.good_steps});
  if (!label.data.empty()) add(kDataKey, {absl::StrJoin(label.data, "\n")});
  if (!label.base_model.empty()) add(kBaseModelKey, {label.base_model.Text()});
  if (spec.scales_loss()) add(kScalesLossKey, {int64_t{1}});
  AddBadSteps(state, &values);
  for (const Bucket& bucket : layout.buckets) {
    if (!bucket.trainable) continue;
    for (size_t slot = 0; slot < bucket.params.size(); ++slot) {
      const std::string group =
          absl::StrCat(kGroupPrefix, ParamName(layout, bucket, static_cast<int>(slot)), ".");
      add(group + "lr_mult", {bucket.params[slot].lr_scale});
      add(group + "weight_decay", {bucket.params[slot].weight_decay});
    }
  }
  return values;
}

struct Pieces {
  std::vector<DcpPiece> pieces;
  std::vector<StoredRun> runs;

  // `run.begin`: of the first piece.
  void Add(std::vector<DcpPiece> of_run, StoredRun run) {
    for (DcpPiece& piece : of_run) {
      runs.push_back(run);
      run.begin += piece.at.elements();
      pieces.push_back(std::move(piece));
    }
  }
};

void AddOwned(const Spec& spec, const Layout& layout, const MeshPosition& position, int number,
              Pieces* pieces) {
  const Bucket& bucket = layout.buckets[number];
  const std::vector<std::string> moments = MomentNames(spec.optimizer);
  const int64_t slice = position.IndexIn(bucket.groups.slices);
  for (const BucketPiece& piece : PiecesOf(bucket, MainRange(bucket, position))) {
    const std::string param = ParamName(layout, bucket, piece.slot);
    const ParamSlot& slot = bucket.params[piece.slot];
    const auto add = [&](const std::string& key, DType type, StoredRun::What what, int moment) {
      std::vector<DcpPiece> of_run =
          PiecesOfRun(key, TypeOf(type), slot.shape, piece.param_begin, piece.elements);
      for (DcpPiece& each : of_run) {
        each.at.offsets = FullOffsets(std::move(each.at.offsets), slot.shape, slot.partition, slice);
        each.shape = FullShape(slot.shape, slot.partition);
      }
      pieces->Add(std::move(of_run), {what, moment, number, piece.range_begin});
    };
    add(MainKey(param), bucket.types.main, StoredRun::What::kMain, 0);
    for (size_t m = 0; bucket.trainable && m < moments.size(); ++m) {
      add(OptimizerKey(param, moments[m]), bucket.types.saved_moment(), StoredRun::What::kMoment,
          static_cast<int>(m));
    }
  }
}

void AddStepsTaken(const Layout& layout, Pieces* pieces) {
  for (const Bucket& bucket : layout.buckets) {
    for (size_t slot = 0; bucket.trainable && slot < bucket.params.size(); ++slot) {
      const std::string param = ParamName(layout, bucket, static_cast<int>(slot));
      pieces->Add(PiecesOfRun(OptimizerKey(param, kStepKey), TypeOf(DType::kFp32), {}, 0, 1),
                  {StoredRun::What::kStepsTaken, 0, 0, 0});
    }
  }
}

struct WantedTensor {
  std::string key;
  std::vector<int64_t> shape;
};

std::vector<WantedTensor> WantedOf(const Spec& spec, const Layout& layout, LoadedPart part) {
  std::vector<WantedTensor> wanted;
  for (const Bucket& bucket : layout.buckets) {
    if (bucket.of_base != (part == LoadedPart::kBaseModel)) continue;
    for (size_t slot = 0; slot < bucket.params.size(); ++slot) {
      const std::string param = ParamName(layout, bucket, static_cast<int>(slot));
      const std::vector<int64_t> shape = FullShape(bucket.params[slot].shape, bucket.params[slot].partition);
      wanted.push_back({MainKey(param), shape});
      if (part != LoadedPart::kTraining || !bucket.trainable) continue;
      for (const std::string& moment : MomentNames(spec.optimizer)) {
        wanted.push_back({OptimizerKey(param, moment), shape});
      }
    }
  }
  return wanted;
}

bool IsFloating(const DcpTensor& tensor) {
  return tensor.type != nullptr &&
         (tensor.type == TypeOf(DType::kFp32) || tensor.type == TypeOf(DType::kBf16) ||
          tensor.type == TypeOf(DType::kFp16));
}

// Does nothing if there is no such value. `read` returns the part of it that is invalid, or null.
template <typename Read>
absl::Status ReadValue(const DcpReader& reader, const std::string& name, const std::string& want, Read read) {
  const DcpValue* value = reader.FindValue(name);
  if (value == nullptr) return absl::OkStatus();
  FSDPD_ASSIGN_OR_RETURN(const Pickle pickle, reader.ReadValue(*value));
  const PickleValue* invalid = read(pickle.root());
  if (invalid == nullptr) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(name, ": invalid value (got ", DescribePickled(*invalid), ", want ", want, ")"));
}

absl::Status ReadNumber(const DcpReader& reader, const std::string& name, int64_t* number) {
  return ReadValue(
      reader, name, absl::StrCat("an integer from 0 to ", kMaxCount), [&](const PickleValue& root) {
        const bool valid = root.kind == PickleKind::kInt && root.integer >= 0 && root.integer <= kMaxCount;
        if (valid) *number = root.integer;
        return valid ? nullptr : &root;
      });
}

absl::Status ReadReal(const DcpReader& reader, const std::string& name, double* real) {
  return ReadValue(reader, name, "a number above 0", [&](const PickleValue& root) {
    const bool valid = root.kind == PickleKind::kFloat && root.real > 0;
    if (valid) *real = root.real;
    return valid ? nullptr : &root;
  });
}

// `read` returns false for an invalid item.
template <typename Read>
absl::Status ReadList(const DcpReader& reader, const std::string& name, const char* items, Read read) {
  return ReadValue(reader, name, absl::StrCat("a list of ", items), [&](const PickleValue& root) {
    if (root.kind != PickleKind::kList || root.items.size() > kMaxItems) return &root;
    const auto invalid = std::find_if_not(root.items.begin(), root.items.end(),
                                          [&](const PickleValue* item) { return read(*item); });
    return invalid == root.items.end() ? nullptr : *invalid;
  });
}

absl::Status ReadBadSteps(const DcpReader& reader, TrainingState* state) {
  FSDPD_RETURN_IF_ERROR(ReadList(reader, kGradNormsKey, "norms", [&](const PickleValue& item) {
    const bool known = item.kind == PickleKind::kFloat;
    if (!known && item.kind != PickleKind::kNone) return false;
    if (known && !(item.real >= 0 && std::isfinite(item.real))) return false;
    // At most one per step: positions in the window are counted back from the last.
    if (static_cast<int64_t>(state->grad_norms.size()) == state->step) return false;
    state->grad_norms.push_back(known ? std::optional<float>(static_cast<float>(item.real)) : std::nullopt);
    return true;
  }));
  const auto into = [&](std::vector<int64_t>* steps) {
    return [state, steps](const PickleValue& item) {
      const int64_t before = steps->empty() ? 0 : steps->back();
      if (item.kind != PickleKind::kInt || item.integer <= before || item.integer > state->step) return false;
      steps->push_back(item.integer);
      return true;
    };
  };
  FSDPD_RETURN_IF_ERROR(ReadList(reader, kSkippedNonfiniteKey, "steps", into(&state->skipped_nonfinite)));
  return ReadList(reader, kSkippedSpikesKey, "steps", into(&state->skipped_spikes));
}

// Empty if absent.
absl::StatusOr<std::string> ReadText(const DcpReader& reader, const std::string& name) {
  std::string text;
  FSDPD_RETURN_IF_ERROR(ReadValue(reader, name, "", [&](const PickleValue& root) -> const PickleValue* {
    if (root.kind == PickleKind::kString) text = std::string(root.text);
    return nullptr;
  }));
  return text;
}

}  // namespace

std::vector<std::string> MomentNames(const OptimizerConfig& optimizer) {
  if (optimizer.kind == OptimizerKind::kAdamW) return {"exp_avg", "exp_avg_sq"};
  if (optimizer.moments() == 1) return {"momentum_buffer"};
  return {};
}

std::string ParamName(const Layout& layout, const Bucket& bucket, int slot) {
  return FullName(layout.units[bucket.unit], bucket.params[slot]);
}

JobFile JobFileOf(const Spec& spec, const Layout& layout, const Layout& whole, const MeshPosition& position,
                  const TrainingState& state, const JobLabel& label) {
  Pieces pieces;
  std::vector<DcpSmall> values;
  if (position.rank == 0) {
    AddStepsTaken(whole, &pieces);
    values = ValuesOf(spec, whole, state, label);
  }
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    if (!layout.buckets[b].of_base && HasFirstCopy(layout.buckets[b], position)) {
      AddOwned(spec, layout, position, static_cast<int>(b), &pieces);
    }
  }
  JobFile file;
  file.file = LayOut(DcpFileName(static_cast<int>(position.rank), label.attempt - 1),
                     std::move(pieces.pieces), std::move(values));
  file.runs = std::move(pieces.runs);
  return file;
}

std::vector<std::string> DifferencesOf(const Spec& spec, const Layout& layout, const DcpIndex& index,
                                       LoadedPart part) {
  absl::flat_hash_map<std::string, const DcpTensor*> found;
  for (const DcpTensor& tensor : index.tensors) found[tensor.name] = &tensor;
  std::vector<std::string> differences;
  absl::flat_hash_set<std::string> known;
  for (const WantedTensor& wanted : WantedOf(spec, layout, part)) {
    known.insert(wanted.key);
    const auto tensor = found.find(wanted.key);
    if (tensor == found.end()) {
      differences.push_back(absl::StrCat(wanted.key, ": is missing"));
    } else if (tensor->second->shape != wanted.shape) {
      differences.push_back(absl::StrCat(wanted.key, ": wrong shape (got ", ShapeText(tensor->second->shape),
                                         ", want ", ShapeText(wanted.shape), ")"));
    } else if (!IsFloating(*tensor->second)) {
      differences.push_back(absl::StrCat(wanted.key, ": wrong dtype (got ", tensor->second->type_name,
                                         ", want a floating-point type)"));
    }
  }
  // Optimizer state of frozen parameters is ignored: they may have been trained before.
  for (const DcpTensor& tensor : index.tensors) {
    if (absl::StartsWith(tensor.name, kNativePrefix) && !known.contains(tensor.name)) {
      differences.push_back(absl::StrCat(Escaped(tensor.name), ": is not in the job's model"));
    }
  }
  return differences;
}

absl::StatusOr<TrainingState> ReadState(const DcpReader& reader, const Spec& spec) {
  if (reader.FindValue(kIterationKey) == nullptr) {
    return absl::FailedPreconditionError(
        "the checkpoint has no step number (iteration); set checkpoint.load_optimizer: false to load only "
        "its parameters");
  }
  TrainingState state;
  FSDPD_RETURN_IF_ERROR(ReadNumber(reader, kIterationKey, &state.step));
  if (state.step > kMaxCount / spec.global_batch)
    return absl::DataLossError(absl::StrCat("iteration: ", state.step, " is too large"));
  state.samples = state.step * spec.global_batch;
  state.steps_taken = state.step;
  state.loss_scale = spec.scales_loss() ? spec.loss_scale.initial : 1;
  FSDPD_RETURN_IF_ERROR(ReadNumber(reader, kSamplesKey, &state.samples));
  FSDPD_RETURN_IF_ERROR(ReadNumber(reader, kStepsTakenKey, &state.steps_taken));
  FSDPD_RETURN_IF_ERROR(ReadNumber(reader, kGoodStepsKey, &state.good_steps));
  double loss_scale = 0;
  FSDPD_RETURN_IF_ERROR(ReadReal(reader, kLossScaleKey, &loss_scale));
  // A job without fp16 has a scale of 1, which would be a poor start for fp16. Older checkpoints do not
  // record whether the loss was scaled; for these, a scale above 1 counts.
  const bool scaled = reader.FindValue(kScalesLossKey) != nullptr || loss_scale > 1;
  if (spec.scales_loss() && scaled && loss_scale > 0) {
    state.loss_scale = loss_scale;
  } else {
    state.good_steps = 0;
  }
  FSDPD_RETURN_IF_ERROR(ReadBadSteps(reader, &state));
  return state;
}

std::vector<std::string> UnreadState(const Spec& spec, const DcpIndex& index) {
  const std::vector<std::string> moments = MomentNames(spec.optimizer);
  std::set<std::string> unread;
  for (const DcpTensor& tensor : index.tensors) {
    if (!absl::StartsWith(tensor.name, kStatePrefix)) continue;
    const std::string what = tensor.name.substr(tensor.name.rfind('.') + 1);
    if (what != kStepKey && std::find(moments.begin(), moments.end(), what) == moments.end())
      unread.insert(what);
  }
  return {unread.begin(), unread.end()};
}

absl::StatusOr<std::string> ReadJobId(const DcpReader& reader) { return ReadText(reader, kJobKey); }

absl::StatusOr<std::string> ReadJobSpec(const DcpReader& reader) { return ReadText(reader, kSpecKey); }

absl::StatusOr<BaseLabel> ReadBaseModel(const DcpReader& reader) {
  FSDPD_ASSIGN_OR_RETURN(const std::string text, ReadText(reader, kBaseModelKey));
  return ParseBaseLabel(text);
}

absl::StatusOr<std::vector<std::string>> ReadJobData(const DcpReader& reader) {
  FSDPD_ASSIGN_OR_RETURN(const std::string text, ReadText(reader, kDataKey));
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

}  // namespace fsdpd
