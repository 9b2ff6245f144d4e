// Rule table: the type of a rule and the sections of the table. Internal to rules.h.
//
// A check is a pure function of the job and of earlier violations. Rules run in table order. A check that
// needs valid inputs calls Facts::IsValid() first and returns nothing if they are invalid, so that only root
// causes are reported.
#pragma once

#include <absl/types/span.h>

#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/spec_text/violation.h"
#include "fsdp/plan/model/model_facts.h"
#include "fsdp/plan/spec/defaults.h"
#include "fsdp/plan/spec/spec.h"
#include "fsdp/plan/spec/steps_limit.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

inline constexpr ViolationLevel kError = ViolationLevel::kError;
inline constexpr ViolationLevel kAdjust = ViolationLevel::kAdjust;
inline constexpr ViolationLevel kWarn = ViolationLevel::kWarn;

inline constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

class Facts {
 public:
  // All arguments must outlive this object. `unparsed`: see CheckJob().
  Facts(const v1::JobSpec& written, const std::vector<std::string>& unparsed, const Violations& found)
      : job(WithDefaults(written, nullptr)), unparsed_(unparsed), found_(found) {}

  // No error so far in these fields or their subfields, and none of them is unparsed, e.g. {"model",
  // "data.sequence_length"}.
  bool IsValid(const std::vector<std::string>& fields) const;
  bool AllValid() const;  // No error in any field.

  // The field or one of its parents could not be parsed.
  bool IsUnparsed(const std::string& field) const;

  // A model is set and valid.
  bool ModelIsKnown() const;

  // Node count and ranks per node are valid and within limits; the device may be unknown.
  bool WorldIsKnown() const;

  ModelConfig model() const;                 // REQUIRES: ModelIsKnown().
  std::optional<LlamaConfig> llama() const;  // Empty: another family, or unknown.
  bool HasOtherFamily() const;               // A known model that is not of the Llama family.
  int64_t layers() const;                    // REQUIRES: ModelIsKnown(), like param_names().
  int64_t steps() const;  // kMaxSteps if only train.epochs is set: rank 0 computes it from the data.
  // Full names, as patterns match them: "layer.0.attention.wq".
  std::vector<std::string> param_names() const;
  // Units and parameters, with the adapters of train.lora; sizes that depend on the batch are of one token.
  // REQUIRES: as layers().
  ModelFacts described_model() const;
  int64_t world() const;         // REQUIRES: WorldIsKnown().
  int64_t data_ranks() const;    // Data-parallel groups. REQUIRES: WorldIsKnown(), IsValid({"parallel"}).
  int64_t global_batch() const;  // REQUIRES: as data_ranks(), and IsValid({"train.micro_batch"}).
  DType compute() const;
  v1::Strategy strategy() const;
  bool shards_grads() const;
  int64_t outer_size() const;
  // Ranks of one replica in one stage. REQUIRES: WorldIsKnown(), IsValid({"fsdp.outer"}).
  int64_t replica_ranks() const;

  const v1::JobSpec job;  // Constant defaults filled in (defaults.h).

 private:
  const std::vector<std::string>& unparsed_;
  const Violations& found_;
};

struct Finding {
  std::string reason;
  std::string fix;
  std::string field = {};   // Empty: the rule's field.
  std::string before = {};  // Only for adjustments, like `after`.
  std::string after = {};
};
using Findings = std::vector<Finding>;

// A rule's check: limits of the number at its field, a condition with fixed texts, or a function.

inline constexpr int64_t kMaxSequence = 1 << 20;
inline constexpr int64_t kMaxMicroBatchTokens = 1 << 24;

// The number at the rule's field must be in [least, most]; a real number must be finite and, if `least` is 1,
// above 0; an enum value must be known. A field that is not set is valid unless it is `required`, and every
// field is valid if the message that contains it is not set.
struct Limits {
  int64_t least = 0;
  int64_t most = kUnlimited;
  const char* fix = "";
  bool required = false;
  const char* name = nullptr;  // In the reason; null: the last part of the field.
};
constexpr Limits Between(int64_t least, int64_t most, const char* fix) { return {least, most, fix}; }
constexpr Limits Required(int64_t most, const char* fix) { return {1, most, fix, true}; }
constexpr Limits Positive(const char* fix) { return {1, kUnlimited, fix}; }
constexpr Limits NotNegative(const char* fix) { return {0, kUnlimited, fix}; }
constexpr Limits Known(const char* fix) { return {0, 0, fix}; }

struct When {
  bool (*is_violated)(const Facts&);
  const char* reason;
  const char* fix;
  const char* before = "";  // Only for adjustments, like `after`.
  const char* after = "";
};

struct Rule {
  const char* id;
  ViolationLevel level;
  const char* field;
  const char* text;  // What must hold, in one line; docs/rules.md lists it.
  std::variant<Findings (*)(const Facts&), Limits, When> check;
};

// In the table's order.
absl::Span<const Rule> ModelRules();          // name, model
absl::Span<const Rule> LatentRules();         // model.llama.latent_attention
absl::Span<const Rule> ExpertsRules();        // model.llama.experts
absl::Span<const Rule> PluginRules();         // model.plugin
absl::Span<const Rule> PackageRules();        // model.package
absl::Span<const Rule> DataRules();           // data
absl::Span<const Rule> RuntimeRules();        // resources, fsdp, priority, restart, telemetry
absl::Span<const Rule> PipelineRules();       // parallel.pipeline, .pipeline_chunks, .stage_units
absl::Span<const Rule> ParallelRules();       // parallel
absl::Span<const Rule> TrainRules();          // train, schedule
absl::Span<const Rule> LoraRules();           // train.lora
absl::Span<const Rule> CheckpointRules();     // checkpoint
absl::Span<const Rule> BadStepRules();        // train.on_nonfinite, train.on_spike
absl::Span<const Rule> DeterministicRules();  // train.deterministic
absl::Span<const Rule> OffloadRules();        // fsdp.offload, fsdp.memory
absl::Span<const Rule> OptimizerRules();      // optimizer
absl::Span<const Rule> PrecisionRules();      // precision
absl::Span<const Rule> Fp8Rules();            // precision.fp8, and compute: fp8
absl::Span<const Rule> EnvRules();            // env
absl::Span<const Rule> ElasticRules();        // restart.elastic

// Checks shared by several sections of the table.
Findings CheckLimits(const Facts& f, const std::string& field, const Limits& limits);
Findings CheckNotNegative(double value, const std::string& name, const std::string& fix);
Findings CheckPositive(double value, const std::string& name, const std::string& fix);
Findings CheckRange(int64_t value, int64_t least, int64_t most, const std::string& name,
                    const std::string& fix);
// For a required field that is not set, which is reported differently from a 0.
Findings Missing(const std::string& name, const std::string& fix);
// Checks a path that ranks on any node open: rejects a relative path or one with `..`. Empty: valid.
Findings CheckPath(const std::string& path);
// Adds the findings to `all`, as findings of that field.
void AddFindings(Findings findings, const std::string& field, Findings* all);

}  // namespace fsdpd
