// What a rule is, and the parts of the table. Internal to rules.h.
//
// A check is a pure function of the job and of what earlier rules have found: rules run in the table's order,
// and one that needs sound values asks Facts::Sound() first and stays silent when they are not.
#pragma once

#include <string>
#include <vector>

#include "base/violation.h"
#include "fsdp/plan/spec/defaults.h"
#include "fsdp/plan/spec/spec.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

class Facts {
 public:
  // All must outlive it. `unread` as CheckJob() takes it.
  Facts(const v1::JobSpec& written, const std::vector<std::string>& unread, const Violations& found)
      : job(WithDefaults(written, nullptr)), unread_(unread), found_(found) {}

  // No error so far in these fields or below them, and nothing that could not be read:
  // {"model", "data.sequence_length"}.
  bool Sound(const std::vector<std::string>& fields) const;
  bool AllSound() const;  // Nor anywhere else.

  // The field, or something that it is within, could not be read.
  bool Unread(const std::string& field) const;

  // A model is named and sound.
  bool ModelIsKnown() const;

  // Nodes and ranks of each are sound, and not too many; the device may be unknown.
  bool WorldIsKnown() const;

  ModelConfig model() const;                     // REQUIRES: ModelIsKnown().
  int64_t layers() const;                        // Likewise, as the next.
  std::vector<std::string> param_names() const;  // "layer.0.attention.wq", as patterns see them.
  int64_t world() const;                         // REQUIRES: WorldIsKnown().
  int64_t data_ranks() const;    // Groups that read samples. REQUIRES: WorldIsKnown(), Sound({"parallel"}).
  int64_t global_batch() const;  // Likewise, and Sound({"train.micro_batch"}).
  DType compute() const;
  v1::Strategy strategy() const;
  bool shards_grads() const;
  int64_t outer_size() const;
  // Of a replica, in one stage. REQUIRES: WorldIsKnown(), Sound({"fsdp.outer"}).
  int64_t replica_ranks() const;

  const v1::JobSpec job;  // Defaults filled in, except for those that follow from other values.

 private:
  const std::vector<std::string>& unread_;
  const Violations& found_;
};

struct Finding {
  std::string reason;
  std::string fix;
  std::string field = {};   // Empty: the rule's.
  std::string before = {};  // Adjustments only, with `after`.
  std::string after = {};
};
using Findings = std::vector<Finding>;

struct Rule {
  const char* id;
  FaultLevel level;
  const char* field;
  const char* text;  // What must hold, in one line.
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

// What the parts of the table say in the same words.
Findings NotNegative(double value, const char* name, const char* fix);
Findings Positive(double value, const char* name, const std::string& fix);
Findings Between(int64_t value, int64_t most, const char* name, const std::string& fix);  // From 1.
// Of a field that has no default: nobody wrote it, which is another fault than a 0.
Findings Missing(const char* name, const std::string& fix);
// Of a path that ranks on any node open: relative, or with a `..`. Empty: there is none.
Findings ChecksWhole(const std::string& path);

}  // namespace fsdpd
