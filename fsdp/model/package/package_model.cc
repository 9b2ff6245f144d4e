#include "fsdp/model/package/package_model.h"

#include <ATen/ops/from_file.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "fsdp/model/package/compiled_unit.h"
#include "fsdp/package/package_file.h"
#include "fsdp/torch/cuda_device.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

using v1::PackageValue;

absl::Status Unusable(const std::string& reason) {
  return absl::FailedPreconditionError(absl::StrCat("package: ", reason));
}

// "2.11.0+cu130" -> "2.11.0"
absl::string_view ReleaseOf(absl::string_view version) { return version.substr(0, version.find('+')); }

// Instruction set that this processor has, as `fsdpctl model export` names it.
bool CanRun(absl::string_view target) {
  if (target == "x86-64-v3")
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  return false;
}

absl::Status CheckPlatform(const v1::Package& model, at::Device device) {
  const absl::string_view ours = ReleaseOf(TORCH_VERSION);
  if (ReleaseOf(model.torch_version()) != ours)
    return Unusable(absl::StrCat("compiled by PyTorch ", model.torch_version(), ", but this node runs ", ours,
                                 "; export it again with PyTorch ", ours));
  const bool for_cuda = model.device() == v1::DEVICE_CUDA;
  if (for_cuda != device.is_cuda())
    return Unusable(absl::StrFormat("compiled for %s, not for %s; export it again with --device %s",
                                    for_cuda ? "cuda" : "cpu", for_cuda ? "cpu" : "cuda",
                                    for_cuda ? "cpu" : "cuda"));
  if (!device.is_cuda()) {
    if (CanRun(model.target())) return absl::OkStatus();
    return Unusable(absl::StrCat("compiled for ", model.target(),
                                 ", which this processor does not support; run the job on other nodes"));
  }
  FSDPD_ASSIGN_OR_RETURN(const std::string target, CudaTarget(device.index()));
  if (target == model.target()) return absl::OkStatus();
  return Unusable(absl::StrCat("compiled for ", model.target(), ", but this GPU is ", target,
                               "; export it again on such a GPU"));
}

using Values = google::protobuf::RepeatedPtrField<PackageValue>;
using Sizes = std::map<PackageValue::Kind, int64_t>;  // Number of values per kind that a unit has.

int64_t CountOf(const Values& values, PackageValue::Kind kind) {
  return std::count_if(values.begin(), values.end(),
                       [&](const PackageValue& value) { return value.kind() == kind; });
}

// Each value exists, and none occurs twice.
absl::Status CheckValues(const Values& values, const Sizes& sizes, const char* what) {
  std::set<std::pair<int, int64_t>> seen;
  for (const PackageValue& value : values) {
    const auto size = sizes.find(value.kind());
    if (size == sizes.end() || value.index() < 0 || value.index() >= size->second ||
        !seen.emplace(value.kind(), value.index()).second)
      return absl::FailedPreconditionError(
          absl::StrCat("invalid ", what, ": ", PackageValue::Kind_Name(value.kind()), " ", value.index()));
  }
  return absl::OkStatus();
}

absl::Status Check(bool holds, absl::string_view reason) {
  return holds ? absl::OkStatus() : absl::FailedPreconditionError(reason);
}

// Calls of a unit with these numbers of parameters (own and borrowed) and buffers.
class CallRules {
 public:
  CallRules(const v1::Package::Graph& graph, const v1::PackageGraph& calls, int64_t params, int64_t buffers)
      : graph_(graph),
        calls_(calls),
        inputs_({{PackageValue::KIND_TOKENS, 1},
                 {PackageValue::KIND_POSITIONS, 1},
                 {PackageValue::KIND_HIDDEN, 1},
                 {PackageValue::KIND_PARAM, params},
                 {PackageValue::KIND_BUFFER, buffers}}) {}

  absl::Status Apply() const {
    FSDPD_RETURN_IF_ERROR(Check(!calls_.evaluation().library().empty(), "has no evaluation"));
    FSDPD_RETURN_IF_ERROR(CheckForward(calls_.evaluation()));
    FSDPD_RETURN_IF_ERROR(
        Check(calls_.variants_size() == graph_.variants_size(), "has another number of variants"));
    for (const v1::PackageGraph::Variant& variant : calls_.variants()) {
      if (variant.has_forward()) FSDPD_RETURN_IF_ERROR(CheckForward(variant.forward()));
      FSDPD_RETURN_IF_ERROR(CheckBackward(variant));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckForward(const v1::PackageCall& call) const {
    FSDPD_RETURN_IF_ERROR(CheckValues(call.inputs(), inputs_, "argument"));
    const int64_t saved = CountOf(call.outputs(), PackageValue::KIND_SAVED);
    FSDPD_RETURN_IF_ERROR(CheckValues(
        call.outputs(), {{PackageValue::KIND_HIDDEN, 1}, {PackageValue::KIND_SAVED, saved}}, "result"));
    return Check(CountOf(call.outputs(), PackageValue::KIND_HIDDEN) == 1, "a forward has no hidden states");
  }

  // Backward returns the gradient of everything that forward reads and that has one.
  absl::Status CheckBackward(const v1::PackageGraph::Variant& variant) const {
    const v1::PackageCall& call = variant.backward();
    Sizes inputs = inputs_;
    inputs[PackageValue::KIND_SAVED] =
        CountOf((variant.has_forward() ? variant.forward() : calls_.evaluation()).outputs(),
                PackageValue::KIND_SAVED);
    inputs[PackageValue::KIND_GRAD_HIDDEN] = 1;
    FSDPD_RETURN_IF_ERROR(CheckValues(call.inputs(), inputs, "argument of backward"));
    const Sizes outputs = {{PackageValue::KIND_GRAD_HIDDEN, 1},
                           {PackageValue::KIND_GRAD_PARAM, inputs_.at(PackageValue::KIND_PARAM)}};
    FSDPD_RETURN_IF_ERROR(CheckValues(call.outputs(), outputs, "result of backward"));
    FSDPD_RETURN_IF_ERROR(Check(CountOf(call.outputs(), PackageValue::KIND_GRAD_HIDDEN) ==
                                    CountOf(calls_.evaluation().inputs(), PackageValue::KIND_HIDDEN),
                                "backward has no gradient of the hidden states, or one without an input"));
    for (const PackageValue& input : calls_.evaluation().inputs()) {
      const bool trained = input.kind() == PackageValue::KIND_PARAM && input.index() < graph_.params_size() &&
                           !graph_.params(static_cast<int>(input.index())).frozen();
      if (!trained || IsOfHead(input.index())) continue;
      FSDPD_RETURN_IF_ERROR(Check(std::any_of(call.outputs().begin(), call.outputs().end(),
                                              [&](const PackageValue& value) {
                                                return value.kind() == PackageValue::KIND_GRAD_PARAM &&
                                                       value.index() == input.index();
                                              }),
                                  absl::StrCat("backward has no gradient of parameter ",
                                               graph_.params(static_cast<int>(input.index())).name())));
    }
    return absl::OkStatus();
  }

  bool IsOfHead(int64_t param) const {
    const v1::Package::Head& head = graph_.head();
    return graph_.has_head() && (param == head.weight() || (head.has_bias() && param == head.bias()));
  }

  const v1::Package::Graph& graph_;
  const v1::PackageGraph& calls_;
  const Sizes inputs_;
};

class Loader {
 public:
  Loader(const v1::PackageManifest& manifest, const std::string& directory, at::Device device)
      : manifest_(manifest), directory_(directory), device_(device) {}

  absl::StatusOr<std::unique_ptr<Unit>> MakeUnit(int index, const UnitFacts& facts) {
    const v1::Package::Unit& unit = manifest_.model().units(index);
    const auto graph = static_cast<int>(unit.graph());
    const int lender = LenderOf(unit);
    std::vector<PackageValues> initial;
    FSDPD_RETURN_IF_ERROR(AddParams(index, facts, &initial));
    // A pipeline stage without the lender has copies of its parameters.
    if (initial.size() < facts.params.size() && lender >= 0)
      FSDPD_RETURN_IF_ERROR(AddParams(lender, facts, &initial));
    if (initial.size() != facts.params.size()) return OtherParams(unit);
    std::vector<at::Tensor> buffers;
    for (const int64_t buffer : manifest_.units(index).buffers()) {
      FSDPD_ASSIGN_OR_RETURN(at::Tensor made, BufferAt(buffer));
      buffers.push_back(std::move(made));
    }
    const int64_t lent = lender < 0 ? 0 : GraphOf(manifest_.model().units(lender)).params_size();
    FSDPD_ASSIGN_OR_RETURN(auto calls, CallsOf(graph, static_cast<int64_t>(buffers.size()), lent));
    std::optional<v1::Package::Head> head;
    if (manifest_.model().graphs(graph).has_head()) head = manifest_.model().graphs(graph).head();
    return std::make_unique<CompiledUnit>(facts, std::move(calls), std::move(buffers), std::move(initial),
                                          std::move(head));
  }

 private:
  const v1::Package::Graph& GraphOf(const v1::Package::Unit& unit) const {
    return manifest_.model().graphs(static_cast<int>(unit.graph()));
  }

  static absl::Status OtherParams(const v1::Package::Unit& unit) {
    return Unusable(absl::StrCat("unit ", unit.name(), " has other parameters than in the job's spec"));
  }

  // Adds the initial values of the parameters of unit `index` of the manifest, which follow those in
  // `initial`. Compiled code does not check the shapes of its arguments.
  absl::Status AddParams(int index, const UnitFacts& facts, std::vector<PackageValues>* initial) const {
    const v1::Package::Unit& unit = manifest_.model().units(index);
    const auto& params = GraphOf(unit).params();
    const auto& values = manifest_.units(index).initial_values();
    if (values.size() != params.size())
      return Unusable(absl::StrCat("unit ", unit.name(), " has ", values.size(), " initial values for ",
                                   params.size(), " parameters"));
    for (int i = 0; i < params.size(); ++i) {
      if (initial->size() == facts.params.size()) return OtherParams(unit);
      const ParamFacts& fact = facts.params[initial->size()];
      const auto& shape = params[i].shape();
      if (!std::equal(shape.begin(), shape.end(), fact.shape.begin(), fact.shape.end()))
        return OtherParams(unit);
      auto made = PackageValues::Make(values[i], directory_, fact.elements());
      if (!made.ok())
        return Unusable(absl::StrCat(unit.name(), ".", fact.name, ": ", made.status().message()));
      initial->push_back(*std::move(made));
    }
    return absl::OkStatus();
  }

  // The unit whose parameters this one binds after its own, or -1.
  int LenderOf(const v1::Package::Unit& unit) const {
    const auto& units = manifest_.model().units();
    const auto found = std::find_if(units.begin(), units.end(), [&](const v1::Package::Unit& each) {
      return !unit.tied_to().empty() && each.name() == unit.tied_to();
    });
    return found == units.end() ? -1 : static_cast<int>(found - units.begin());
  }

  absl::StatusOr<at::Tensor> BufferAt(int64_t index) {
    if (index < 0 || index >= manifest_.buffers_size()) return Unusable("a unit names an unknown buffer");
    at::Tensor& made = buffers_[index];
    if (made.defined()) return made;
    const v1::PackageBuffer& buffer = manifest_.buffers(static_cast<int>(index));
    static const auto* const types = new std::map<std::string, at::ScalarType>{
        {"float32", at::kFloat},     {"float64", at::kDouble}, {"float16", at::kHalf},
        {"bfloat16", at::kBFloat16}, {"int64", at::kLong},     {"int32", at::kInt},
        {"bool", at::kBool},         {"uint8", at::kByte}};
    const auto type = types->find(buffer.type());
    if (type == types->end())
      return Unusable(absl::StrCat("buffer ", buffer.name(), " has unknown type ", buffer.type()));
    const std::vector<int64_t> shape(buffer.shape().begin(), buffer.shape().end());
    const std::string path = absl::StrCat(directory_, "/", buffer.file());
    std::error_code error;
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
    int64_t elements = 1;
    for (const int64_t size : shape) {
      if (size < 0 || size > bytes / std::max<int64_t>(elements, 1))
        error = std::make_error_code(std::errc::value_too_large);
      if (!error) elements *= size;
    }
    if (error || elements * static_cast<int64_t>(at::elementSize(type->second)) != bytes)
      return Unusable(absl::StrCat("buffer ", buffer.name(), " has another size than its file"));
    const absl::Status read = CatchTorch([&] {
      made = at::from_file(path, /*shared=*/false, elements, at::TensorOptions().dtype(type->second))
                 .view(shape)
                 .to(device_, /*non_blocking=*/false, /*copy=*/true);
      return absl::OkStatus();
    });
    if (!read.ok()) return Unusable(absl::StrCat("buffer ", buffer.name(), ": ", read.message()));
    return made;
  }

  // Returns an empty call if the manifest has none.
  absl::StatusOr<UnitCall> Load(const v1::PackageCall& from) {
    UnitCall call;
    if (from.library().empty()) return call;
    call.inputs.assign(from.inputs().begin(), from.inputs().end());
    call.outputs.assign(from.outputs().begin(), from.outputs().end());
    FSDPD_ASSIGN_OR_RETURN(call.compiled,
                           CompiledCall::Load(absl::StrCat(directory_, "/", from.library()), device_));
    return call;
  }

  absl::StatusOr<std::shared_ptr<const UnitCalls>> CallsOf(int graph, int64_t buffers, int64_t lent) {
    const v1::Package::Graph& facts = manifest_.model().graphs(graph);
    const v1::PackageGraph& from = manifest_.graphs(graph);
    const absl::Status valid = CallRules(facts, from, facts.params_size() + lent, buffers).Apply();
    if (!valid.ok()) return Unusable(absl::StrCat("graph ", graph, ": ", valid.message()));
    std::shared_ptr<const UnitCalls>& made = graphs_[graph];
    if (made != nullptr) return made;
    auto calls = std::make_shared<UnitCalls>();
    FSDPD_ASSIGN_OR_RETURN(calls->evaluation, Load(from.evaluation()));
    for (int i = 0; i < from.variants_size(); ++i) {
      UnitCalls::Variant variant;
      FSDPD_ASSIGN_OR_RETURN(variant.forward, Load(from.variants(i).forward()));
      FSDPD_ASSIGN_OR_RETURN(variant.backward, Load(from.variants(i).backward()));
      calls->variants[SavingOf(facts.variants(i).recompute())] = std::move(variant);
    }
    // As the plan chooses (PackageGraph::VariantFor): a mode without a variant uses the next cheaper one.
    const auto all = calls->variants.find(ActivationSaving::kAll);
    if (all == calls->variants.end()) return Unusable(absl::StrCat("graph ", graph, " has no variant none"));
    const UnitCalls::Variant none = all->second;
    const UnitCalls::Variant selective =
        calls->variants.emplace(ActivationSaving::kSelective, none).first->second;
    calls->variants.emplace(ActivationSaving::kInput, selective);
    made = calls;
    return made;
  }

  static ActivationSaving SavingOf(v1::Recompute recompute) {
    if (recompute == v1::RECOMPUTE_FULL) return ActivationSaving::kInput;
    return recompute == v1::RECOMPUTE_SELECTIVE ? ActivationSaving::kSelective : ActivationSaving::kAll;
  }

  const v1::PackageManifest& manifest_;
  const std::string directory_;
  const at::Device device_;
  std::map<int, std::shared_ptr<const UnitCalls>> graphs_;
  std::map<int64_t, at::Tensor> buffers_;
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Unit>>> MakePackageUnits(const PackageConfig& config,
                                                                    const std::string& directory,
                                                                    const ModelFacts& facts,
                                                                    at::Device device) {
  FSDPD_ASSIGN_OR_RETURN(v1::PackageManifest manifest, ReadPackage(config.path));
  // Before gigabytes are unpacked. UnpackPackage reports another digest.
  if (manifest.model().digest() == config.digest)
    FSDPD_RETURN_IF_ERROR(CheckPlatform(manifest.model(), device));
  // The file may have been replaced: only this manifest has the digest.
  FSDPD_ASSIGN_OR_RETURN(manifest, UnpackPackage(config.path, config.digest, directory));
  const v1::Package& model = manifest.model();
  FSDPD_RETURN_IF_ERROR(CheckPlatform(model, device));
  for (const v1::Package::Unit& unit : model.units()) {
    if (unit.graph() < 0 || unit.graph() >= model.graphs_size())
      return Unusable(absl::StrCat("unit ", unit.name(), " has no graph"));
  }
  Loader loader(manifest, directory, device);
  std::vector<std::unique_ptr<Unit>> units;
  for (const UnitFacts& unit : facts.units) {
    const auto found = std::find_if(model.units().begin(), model.units().end(),
                                    [&](const v1::Package::Unit& each) { return each.name() == unit.name; });
    if (found == model.units().end()) return Unusable(absl::StrCat("has no unit ", unit.name));
    FSDPD_ASSIGN_OR_RETURN(
        auto made, loader.MakeUnit(static_cast<int>(std::distance(model.units().begin(), found)), unit));
    units.push_back(std::move(made));
  }
  return units;
}

}  // namespace fsdpd
