#include "fsdp/checkpoint/names/adapter_names.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <set>
#include <variant>

#include "base/check.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/model/lora_facts.h"

namespace fsdpd {
namespace {

constexpr char kPeftPrefix[] = "base_model.model.";

// "model.layers.0.self_attn.q_proj" of "model.layers.0.self_attn.q_proj.weight".
std::string ModuleOf(absl::string_view theirs) {
  absl::ConsumeSuffix(&theirs, ".weight");
  return std::string(theirs);
}

std::string LastPart(const std::string& module) { return module.substr(module.rfind('.') + 1); }

}  // namespace

std::map<std::string, std::string> ModulesOf(const ModelConfig& model) {
  ModelConfig one_expert = model;
  if (auto* llama = std::get_if<LlamaConfig>(&one_expert))
    llama->experts.count = std::min<int64_t>(llama->experts.count, 1);
  std::map<std::string, std::string> modules;
  for (const NamedParam& param : ParamsOf(one_expert, Naming::kTransformers))
    modules.emplace(param.ours, ModuleOf(param.theirs));
  return modules;
}

std::vector<NamedParam> AdapterParamsOf(const ModelConfig& model, const LoraConfig& lora) {
  ModelFacts facts = DescribeModel(model, 1, 1, DType::kFp32);
  DescribeLora(lora, /*tokens=*/1, DType::kFp32, &facts);
  const std::map<std::string, std::string> modules = ModulesOf(model);
  std::vector<NamedParam> params;
  for (const UnitFacts& unit : facts.units) {
    for (const ParamFacts& param : unit.params) {
      if (param.lora == LoraPart::kNone) continue;
      NamedParam named;
      named.ours = FullName(unit, param);
      const size_t dot = named.ours.rfind('.');
      const auto module = modules.find(named.ours.substr(0, dot));
      FSDPD_CHECK(module != modules.end());
      named.theirs = absl::StrCat(kPeftPrefix, module->second, named.ours.substr(dot), ".weight");
      named.shape = param.shape;
      params.push_back(std::move(named));
    }
  }
  return params;
}

std::vector<std::string> TargetModulesOf(const ModelConfig& model, const LoraConfig& lora) {
  const std::map<std::string, std::string> modules = ModulesOf(model);
  std::set<std::string> targets, others;  // Full names of targets; last parts of all other modules.
  for (const NamedParam& param : AdapterParamsOf(model, lora))
    targets.insert(modules.at(param.ours.substr(0, param.ours.rfind('.'))));
  for (const NamedParam& param : ParamsOf(model, Naming::kTransformers)) {
    const std::string module = ModuleOf(param.theirs);
    if (targets.count(module) == 0) others.insert(LastPart(module));
  }
  std::set<std::string> names;
  for (const std::string& module : targets) {
    const std::string last = LastPart(module);
    names.insert(others.count(last) > 0 ? module : last);
  }
  return {names.begin(), names.end()};
}

}  // namespace fsdpd
