#include "fsdp/plan/rules/rule_table.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/dot_dot.h"
#include "base/limits.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/model/lora_facts.h"
#include "fsdp/plan/spec/field_path.h"

namespace fsdpd {
namespace {

struct Named {
  int64_t layers = 0;
  std::vector<std::string> params;
};

ModelFacts Described(const v1::JobSpec& job) {
  const ModelConfig model = ToModelConfig(job.model());
  ModelFacts facts = DescribeModel(model, 1, 1, DType::kFp32);
  if (!job.train().has_lora() || !std::holds_alternative<LlamaConfig>(model)) return facts;
  LoraConfig lora = ToLoraConfig(job.train().lora());
  lora.rank = 1;  // The job's may be invalid, and names do not depend on it.
  DescribeLora(lora, /*tokens=*/1, DType::kFp32, &facts);
  return facts;
}

Named NamesOf(const v1::JobSpec& job) {
  Named named;
  const bool lora = job.train().has_lora();
  for (const UnitFacts& unit : Described(job).units) {
    named.layers += unit.kind == UnitKind::kBlock ? 1 : 0;
    for (const ParamFacts& param : unit.params) {
      // Patterns of groups match what is trained: with LoRA only adapters.
      if (!lora || param.lora != LoraPart::kNone) named.params.push_back(FullName(unit, param));
    }
  }
  return named;
}

// Cached, because several rules need it and a search checks thousands of meshes with one model.
const Named& NamedOf(const v1::JobSpec& job) {
  thread_local std::string known;
  thread_local Named named;
  std::string asked = job.model().SerializeAsString();
  for (const std::string& target : job.train().lora().targets()) absl::StrAppend(&asked, "\n", target);
  absl::StrAppend(&asked, job.train().has_lora() ? "\nlora" : "");
  if (asked == known) return named;
  named = NamesOf(job);
  known = std::move(asked);
  return named;
}

}  // namespace

bool Facts::IsValid(const std::vector<std::string>& fields) const {
  for (const std::string& field : fields) {
    const auto is_within = [&](const std::string& fault) { return IsWithin(fault, field); };
    if (IsUnparsed(field) || std::any_of(unparsed_.begin(), unparsed_.end(), is_within)) return false;
    for (const Violation& violation : found_) {
      if (violation.level == ViolationLevel::kError && is_within(violation.field)) return false;
    }
  }
  return true;
}

int64_t Facts::steps() const {
  return job.train().has_epochs() && !job.train().has_steps() ? kMaxSteps : job.train().steps();
}

bool Facts::AllValid() const {
  return unparsed_.empty() && std::none_of(found_.begin(), found_.end(), [](const Violation& violation) {
           return violation.level == ViolationLevel::kError;
         });
}

bool Facts::IsUnparsed(const std::string& field) const {
  return std::any_of(unparsed_.begin(), unparsed_.end(),
                     [&](const std::string& unparsed) { return IsWithin(field, unparsed); });
}

bool Facts::ModelIsKnown() const {
  return job.model().source_case() != v1::Model::SOURCE_NOT_SET && IsValid({"model"});
}

bool Facts::WorldIsKnown() const {
  return IsValid({"resources.nodes", "resources.ranks_per_node"}) && world() <= kMaxWorld;
}

ModelConfig Facts::model() const { return ToModelConfig(job.model()); }

std::optional<LlamaConfig> Facts::llama() const {
  if (!ModelIsKnown()) return std::nullopt;
  const ModelConfig config = model();
  const auto* llama = std::get_if<LlamaConfig>(&config);
  return llama == nullptr ? std::nullopt : std::optional<LlamaConfig>(*llama);
}

bool Facts::HasOtherFamily() const { return ModelIsKnown() && !std::holds_alternative<LlamaConfig>(model()); }

int64_t Facts::layers() const { return NamedOf(job).layers; }

std::vector<std::string> Facts::param_names() const { return NamedOf(job).params; }

ModelFacts Facts::described_model() const { return Described(job); }

int64_t Facts::world() const { return RanksOf(job); }

// An outer size above the number of ranks is reported by another rule, which is skipped if fsdp.outer is
// invalid.
int64_t Facts::data_ranks() const { return std::max<int64_t>(1, world() / RanksPerSample(job)); }

int64_t Facts::global_batch() const { return GlobalBatchOf(job); }

DType Facts::compute() const {
  switch (job.precision().compute()) {
    case v1::DTYPE_BF16:
    case v1::DTYPE_FP8:
      return DType::kBf16;
    case v1::DTYPE_FP16:
      return DType::kFp16;
    default:
      return DType::kFp32;
  }
}

v1::Strategy Facts::strategy() const { return job.fsdp().strategy(); }

bool Facts::shards_grads() const {
  return strategy() == v1::STRATEGY_OPTIM_GRADS || strategy() == v1::STRATEGY_OPTIM_GRADS_PARAMS;
}

int64_t Facts::replica_ranks() const {
  return world() / outer_size() / (IsValid({"parallel.pipeline"}) ? job.parallel().pipeline() : 1);
}

int64_t Facts::outer_size() const { return std::max<int64_t>(1, job.fsdp().outer().size()); }

Findings CheckNotNegative(double value, const std::string& name, const std::string& fix) {
  if (std::isfinite(value) && value >= 0) return {};
  return {{absl::StrCat(name, " is ", value, " and must be 0 or a positive, finite number"), fix}};
}

Findings CheckPositive(double value, const std::string& name, const std::string& fix) {
  if (std::isfinite(value) && value > 0) return {};
  return {{absl::StrCat(name, " is ", value, " and must be a positive, finite number"), fix}};
}

Findings CheckRange(int64_t value, int64_t least, int64_t most, const std::string& name,
                    const std::string& fix) {
  if (value >= least && value <= most) return {};
  const std::string limits = most != kUnlimited ? absl::StrCat("must be between ", least, " and ", most)
                             : least == 0       ? "cannot be negative"
                                                : absl::StrCat("must be at least ", least);
  return {{absl::StrCat(name, " is ", value, " and ", limits), fix}};
}

Findings CheckLimits(const Facts& f, const std::string& field, const Limits& limits) {
  const FieldAt at = FindField(f.job, field);
  if (at.parent == nullptr || !(at.is_set() || limits.required)) return {};
  const std::string name = limits.name != nullptr ? limits.name : at.field->name();
  if (!at.is_set()) return Missing(name, limits.fix);
  const auto& reflection = *at.parent->GetReflection();
  switch (at.field->cpp_type()) {
    case google::protobuf::FieldDescriptor::CPPTYPE_ENUM: {
      const int number = reflection.GetEnumValue(*at.parent, at.field);
      if (at.field->enum_type()->FindValueByNumber(number) != nullptr) return {};
      return {{absl::StrCat(name, " number ", number, " is not supported"), limits.fix}};
    }
    case google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE: {
      const double value = reflection.GetDouble(*at.parent, at.field);
      return limits.least > 0 ? CheckPositive(value, name, limits.fix)
                              : CheckNotNegative(value, name, limits.fix);
    }
    default:
      return CheckRange(reflection.GetInt64(*at.parent, at.field), limits.least, limits.most, name,
                        limits.fix);
  }
}

Findings CheckPath(const std::string& path) {
  if (path.empty()) return {};
  if (path[0] != '/') {
    return {
        {absl::StrCat("'", path,
                      "' is a relative path (want an absolute one: each rank has its own working directory)"),
         absl::StrCat("write the whole path, /.../", path, " (fsdpctl does this automatically)")}};
  }
  if (!HasDotDot(path)) return {};
  return {{absl::StrCat("'", path, "' contains .. (links can resolve it differently on each node)"),
           "write the path without .."}};
}

Findings Missing(const std::string& name, const std::string& fix) {
  return {{absl::StrCat(name, " is missing, and it has no default"), fix}};
}

void AddFindings(Findings findings, const std::string& field, Findings* all) {
  for (Finding& finding : findings) {
    finding.field = field;
    all->push_back(std::move(finding));
  }
}

}  // namespace fsdpd
