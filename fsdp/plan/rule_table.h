// What a rule is, and the parts of the table. Internal to rules.h.
//
// A check is a pure function of the job and of what earlier rules have found: rules run in the table's order,
// and one that needs sound values asks Facts::Sound() first and stays silent when they are not.
#pragma once

#include <string>
#include <vector>

#include "base/violation.h"
#include "fsdp/plan/spec.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

class Facts {
 public:
  Facts(const v1::JobSpec& job, const Violations& found) : job(job), found_(found) {}

  // No error so far in these fields or below them: {"model", "data.sequence_length"}.
  bool Sound(const std::vector<std::string>& fields) const;

  // A model is named and sound.
  bool ModelIsKnown() const;

  ModelConfig model() const;                     // REQUIRES: ModelIsKnown().
  int64_t layers() const;                        // Likewise, as the next.
  std::vector<std::string> param_names() const;  // "layer.0.attention.wq", as patterns see them.
  int64_t world() const;  // REQUIRES: Sound({"resources"}). Defaults filled in, as in all below.
  int64_t micro_batch() const;
  int64_t global_batch() const;
  DType compute() const;
  v1::Strategy strategy() const;
  bool shards_grads() const;
  int64_t outer_size() const;

  const v1::JobSpec& job;

 private:
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
const std::vector<Rule>& ModelRules();      // name, model
const std::vector<Rule>& PluginRules();     // model.plugin
const std::vector<Rule>& DataRules();       // data
const std::vector<Rule>& RuntimeRules();    // resources, fsdp, parallel, checkpoint, restart, telemetry
const std::vector<Rule>& TrainRules();      // train, schedule
const std::vector<Rule>& OptimizerRules();  // optimizer
const std::vector<Rule>& PrecisionRules();  // precision

// What the parts of the table say in the same words.
Findings NotNegative(double value, const char* name, const char* fix);

}  // namespace fsdpd
