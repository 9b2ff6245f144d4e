#include "fsdp/checkpoint/convert/convert_plan.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/convert/convert_state.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/format/number_cast.h"
#include "fsdp/checkpoint/names/adapter_names.h"
#include "fsdp/checkpoint/names/job_keys.h"
#include "fsdp/checkpoint/names/param_match.h"

namespace fsdpd {
namespace {

constexpr char kMegatronMain[] = "param";  // The main parameters, as a state.

Naming NamingIn(StoreFormat format) {
  if (format == StoreFormat::kDcp) return Naming::kOurs;
  return format == StoreFormat::kHf ? Naming::kTransformers : Naming::kMegatron;
}

// Builds the targets of one conversion.
class Planner {
 public:
  Planner(const TensorReader& source, const ConversionOptions& conversion)
      : source_(source),
        dcp_(dynamic_cast<const DcpReader*>(&source)),
        conversion_(conversion),
        native_(conversion.to == StoreFormat::kDcp) {}

  absl::StatusOr<ConvertPlan> Plan() {
    const bool only_model = FormatOf(conversion_.source) == StoreFormat::kHf;
    FSDPD_ASSIGN_OR_RETURN(match_, MatchParams(source_, conversion_.model, only_model));
    if (!match_.violations.empty()) {
      plan_.violations = std::move(match_.violations);
      return std::move(plan_);
    }
    FSDPD_RETURN_IF_ERROR(FindState());
    if (!plan_.violations.empty()) return std::move(plan_);
    plan_.from = match_.params;
    plan_.to = ParamsOf(conversion_.model, NamingIn(conversion_.to));
    if (plan_.to.empty()) {
      plan_.violations.Add("model", "torch_dist is not supported with mixture-of-experts layers");
      return std::move(plan_);
    }
    AddTargets("", [this](size_t param) { return MainOf(param); });
    if (carries_) AddState();
    FSDPD_RETURN_IF_ERROR(ReadValues());
    if (native_) WriteValues();
    for (const std::string& name : match_.left_out) {
      if (state_.names.count(name) == 0) plan_.left_out.push_back(name);
    }
    return std::move(plan_);
  }

 private:
  absl::Status FindState() {
    const std::optional<Naming> naming = NamingOf(source_, conversion_.model);
    FSDPD_CHECK(naming.has_value());
    state_.main.assign(match_.params.size(), -1);
    const bool megatrons = *naming == Naming::kMegatron || *naming == Naming::kMegatronLayers;
    if (dcp_ == nullptr || (!megatrons && *naming != Naming::kOurs)) return absl::OkStatus();
    const bool wanted = conversion_.optimizer && conversion_.to != StoreFormat::kHf;
    FSDPD_ASSIGN_OR_RETURN(state_, MatchState(*dcp_, *naming, match_, wanted));
    plan_.violations.Add(state_.violations);
    FSDPD_ASSIGN_OR_RETURN(plan_.common, ReadMegatronCommon(conversion_.source));
    if (megatrons) state_.steps = plan_.common.steps;
    const bool counted =
        std::find(state_.counted.begin(), state_.counted.end(), true) != state_.counted.end();
    carries_ = wanted && (!state_.moments.empty() || (counted && native_));
    if (!carries_ && wanted) state_.names.clear();  // Megatron-Core cannot use step counts without moments.
    if (carries_) CheckState();
    return absl::OkStatus();
  }

  void CheckState() {
    constexpr char kWhere[] = "optimizer state";
    if (!state_.steps.has_value()) {
      plan_.violations.Add(kWhere, "has no step count; use --no-optimizer to omit it");
    }
    if (native_) return;
    if (state_.moments[0] == "momentum_buffer") {
      plan_.violations.Add(kWhere, "torch_dist is not supported with SGD; use --no-optimizer to omit it");
    } else if (!conversion_.adam.has_value()) {
      plan_.violations.Add(
          kWhere,
          "betas and epsilon are unknown; add --spec JOB.YAML of the job that wrote it, or use "
          "--no-optimizer to omit it");
    }
    plan_.adam = conversion_.adam;
  }

  size_t MainOf(size_t param) const {
    return state_.main[param] >= 0 ? static_cast<size_t>(state_.main[param]) : match_.tensors[param];
  }

  std::string NameOf(const NamedParam& param, const std::string& what) const {
    if (native_) return what.empty() ? MainKey(param.ours) : OptimizerKey(param.ours, what);
    return what.empty() ? param.theirs : absl::StrCat(kMegatronState, what, ".", param.theirs);
  }

  ConvertTarget TargetOf(const NamedParam& param, const std::string& what, const TensorType* type) const {
    ConvertTarget target;
    target.piece.name = NameOf(param, what);
    target.piece.type = type;
    target.piece.shape = param.TheirShape();
    target.piece.at = {std::vector<int64_t>(target.piece.shape.size()), target.piece.shape};
    if (param.layer >= 0) {
      target.piece.at.offsets[0] = param.layer;
      target.piece.at.sizes[0] = 1;
      target.begin = param.layer * target.piece.at.elements();
    }
    return target;
  }

  // `tensor` locates the data of a parameter. `what`: which optimizer state; empty: the parameter itself.
  template <typename TensorOf>
  void AddTargets(const std::string& what, TensorOf tensor) {
    std::map<std::pair<std::string, int64_t>, size_t> numbers;
    std::map<std::string, const TensorType*> types;
    std::map<std::string, int64_t> frozen;  // By tensor: the number of its frozen parameters.
    for (size_t i = 0; i < plan_.to.size(); ++i) {
      const NamedParam& param = plan_.to[i];
      if (!what.empty() && !state_.IsTrained(i)) {
        ++frozen[NameOf(param, what)];
        continue;
      }
      const size_t at = tensor(i);
      // Moments keep their type bit for bit; if several with different types are merged, the widest is used.
      const TensorType* own = !what.empty()   ? source_.tensors()[at].type
                              : param.in_fp32 ? FindTensorType("float32")
                                              : conversion_.type;
      const TensorType*& type = types.emplace(NameOf(param, what), own).first->second;
      if (type != own) type = FindTensorType("float32");
      const auto [found, is_new] =
          numbers.emplace(std::make_pair(NameOf(param, what), param.layer), plan_.targets.size());
      if (is_new) plan_.targets.push_back(TargetOf(param, what, own));
      plan_.targets[found->second].sources.push_back({i, at});
    }
    for (const auto& [key, number] : numbers) plan_.targets[number].piece.type = types[key.first];
    for (const auto& [name, count] : frozen) {
      if (types.count(name) == 0) continue;
      plan_.violations.Add(
          name, absl::StrCat("would include ", count,
                             " frozen parameters, which have no optimizer state (torch_dist has one tensor "
                             "for all layers); use --no-optimizer to omit the optimizer state"));
    }
  }

  void AddState() {
    for (size_t m = 0; m < state_.moments.size(); ++m) {
      AddTargets(state_.moments[m], [&](size_t param) { return state_.tensors[m][param]; });
    }
    if (!native_) return AddTargets(kMegatronMain, [this](size_t param) { return MainOf(param); });
    for (size_t i = 0; i < plan_.to.size(); ++i) {
      if (!state_.IsTrained(i) || plan_.to[i].ours_begin > 0) continue;
      ConvertTarget target;
      target.piece = {NameOf(plan_.to[i], "step"), FindTensorType("float32"), {}, {}};
      target.number = static_cast<float>(*state_.steps);
      plan_.targets.push_back(std::move(target));
    }
  }

  // Reads the source's values into `common`, which already has those of common.pt.
  absl::Status ReadValues() {
    MegatronCommon& common = plan_.common;
    if (conversion_.to == StoreFormat::kHf) return absl::OkStatus();
    for (size_t i = 0; dcp_ != nullptr && i < dcp_->index().values.size(); ++i) {
      const DcpValue& value = dcp_->index().values[i];
      const absl::StatusOr<Pickle> pickle = dcp_->ReadValue(value);
      // Values that are not supported (a class, archives with many entries) are skipped; corrupt ones are an
      // error.
      if (!pickle.ok() && !absl::IsUnimplemented(pickle.status())) return pickle.status();
      std::optional<PortableValue> kept = pickle.ok() ? ToPortable(pickle->root()) : std::nullopt;
      if (kept.has_value() && !absl::StrContains(value.name, "/shard_")) {
        common.kept[value.name] = *std::move(kept);
      } else if (carries_) {
        plan_.left_out.push_back(value.name);
      }
    }
    const auto take = [&common](const char* name, std::optional<int64_t>* into) {
      if (const std::optional<int64_t> count = PortableCount(common.kept, name)) *into = count;
      common.kept.erase(name);
    };
    take(kIterationKey, &common.iteration);
    take(kSchedulerSamplesKey, &common.samples);
    if (!common.samples.has_value()) common.samples = PortableCount(common.kept, kSamplesKey);
    common.kept.erase(kVersionKey);
    if (carries_) {
      common.steps = state_.steps;
      if (!common.iteration.has_value())
        plan_.violations.Add(kIterationKey,
                             "is missing, but optimizer state requires a step number; use --no-optimizer to "
                             "convert parameters only");
    }
    if (PortableText(common.kept, kSpecKey).value_or("").empty() && !conversion_.spec.empty())
      common.kept[kSpecKey] = PortableValue{conversion_.spec};
    if (carries_) return absl::OkStatus();
    // The model is also known for sources that have only parameters.
    PortableValues spec;
    if (const auto found = common.kept.find(kSpecKey); found != common.kept.end()) spec.insert(*found);
    common.kept = std::move(spec);
    return absl::OkStatus();
  }

  void WriteValues() {
    const auto add = [this](const std::string& name, const PortableValue& value) {
      plan_.values.push_back({name, SavedPortable(value)});
    };
    if (carries_ && plan_.common.iteration.has_value()) {
      add(kIterationKey, {*plan_.common.iteration});
      add(kVersionKey, {kMegatronVersion});
      PortableValues& kept = plan_.common.kept;
      if (plan_.common.samples.has_value()) {
        add(kSchedulerSamplesKey, {*plan_.common.samples});
        kept.emplace(kSamplesKey, PortableValue{*plan_.common.samples});
      }
      kept.emplace(kStepsTakenKey, PortableValue{*state_.steps});
    }
    for (const auto& [name, value] : plan_.common.kept) add(name, value);
  }

  const TensorReader& source_;
  const DcpReader* const dcp_;  // Null for Hugging Face.
  const ConversionOptions& conversion_;
  const bool native_;
  bool carries_ = false;  // Converts optimizer state.
  ParamMatch match_;
  StateMatch state_;
  ConvertPlan plan_;
};

// The adapters of a LoRA job: names change, layouts do not.
ConvertPlan PlanAdapters(const TensorReader& source, const ConversionOptions& conversion) {
  ConvertPlan plan;
  for (const NamedParam& param : AdapterParamsOf(conversion.model, *conversion.adapters)) {
    const std::string key = MainKey(param.ours);
    const int64_t at = source.Find(key);
    if (at < 0) {
      plan.violations.Add(key, "is missing");
      continue;
    }
    const StoredTensor& stored = source.tensors()[at];
    if (stored.shape != param.shape || !CanCast(*stored.type)) {
      plan.violations.Add(
          key, absl::StrCat("wrong type or shape (got ", stored.type->name, " ", ShapeText(stored.shape),
                            ", want floating-point ", ShapeText(param.shape), ")"));
      continue;
    }
    ConvertTarget target;
    target.piece = {
        param.theirs, conversion.type, param.shape, {std::vector<int64_t>(param.shape.size()), param.shape}};
    target.sources = {{plan.to.size(), static_cast<size_t>(at)}};
    plan.targets.push_back(std::move(target));
    plan.to.push_back(param);
  }
  plan.from = plan.to;
  return plan;
}

}  // namespace

int64_t ConvertPlan::bytes() const {
  int64_t bytes = 0;
  for (const ConvertTarget& target : targets) bytes += target.bytes();
  return bytes;
}

int64_t ConvertPlan::tensors() const {
  std::set<std::string> names;
  for (const ConvertTarget& target : targets) names.insert(target.piece.name);
  return static_cast<int64_t>(names.size());
}

absl::StatusOr<ConvertPlan> PlanConversion(const TensorReader& source, const ConversionOptions& conversion) {
  if (conversion.adapters.has_value()) return PlanAdapters(source, conversion);
  return Planner(source, conversion).Plan();
}

}  // namespace fsdpd
