// Rule table: the type of a rule and the sections of the table. Internal to rules.h.
//
// A check is a pure function of the job and of earlier violations. Rules run in table order. A check that
// needs valid inputs calls Facts::IsValid() first and returns nothing if they are invalid, so that only root
// causes are reported.
#pragma once

#include <string>
#include <vector>

#include "base/spec_text/violation.h"
#include "fsdp/plan/spec/defaults.h"
#include "fsdp/plan/spec/spec.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

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

  ModelConfig model() const;  // REQUIRES: ModelIsKnown().
  int64_t layers() const;     // REQUIRES: ModelIsKnown(), like param_names().
  // Full names, as patterns match them: "layer.0.attention.wq".
  std::vector<std::string> param_names() const;
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

struct Rule {
  const char* id;
  ViolationLevel level;
  const char* field;
  const char* text;  // What must hold, in one line; docs/rules.md lists it.
  Findings (*check)(const Facts&);
};

// In the table's order.
const std::vector<Rule>& ModelRules();          // name, model
const std::vector<Rule>& LatentRules();         // model.llama.latent_attention
const std::vector<Rule>& ExpertsRules();        // model.llama.experts
const std::vector<Rule>& PluginRules();         // model.plugin
const std::vector<Rule>& DataRules();           // data
const std::vector<Rule>& RuntimeRules();        // resources, fsdp, priority, restart, telemetry
const std::vector<Rule>& PipelineRules();       // parallel.pipeline, .pipeline_chunks, .stage_units
const std::vector<Rule>& ParallelRules();       // parallel
const std::vector<Rule>& TrainRules();          // train, schedule
const std::vector<Rule>& CheckpointRules();     // checkpoint
const std::vector<Rule>& BadStepRules();        // train.on_nonfinite, train.on_spike
const std::vector<Rule>& DeterministicRules();  // train.deterministic
const std::vector<Rule>& OffloadRules();        // fsdp.offload, fsdp.memory
const std::vector<Rule>& OptimizerRules();      // optimizer
const std::vector<Rule>& PrecisionRules();      // precision
const std::vector<Rule>& Fp8Rules();            // precision.fp8, and compute: fp8
const std::vector<Rule>& EnvRules();            // env
const std::vector<Rule>& ElasticRules();        // restart.elastic

// Checks shared by several sections of the table.
Findings NotNegative(double value, const char* name, const char* fix);
Findings Positive(double value, const char* name, const std::string& fix);
Findings Between(int64_t value, int64_t most, const char* name, const std::string& fix);  // Valid: 1..most.
// For a required field that is not set, which is reported differently from a 0.
Findings Missing(const char* name, const std::string& fix);
// Checks a path that ranks on any node open: rejects a relative path or one with `..`. Empty: valid.
Findings CheckPath(const std::string& path);

}  // namespace fsdpd
