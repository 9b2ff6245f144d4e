// What a rule is, and the three parts of the table. Internal to rules.h.
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

  LlamaConfig model() const;  // REQUIRES: Sound({"model"}).
  int64_t world() const;      // REQUIRES: Sound({"resources"}). Defaults filled in, like the two below.
  int64_t micro_batch() const;
  int64_t global_batch() const;
  DType compute() const;
  bool no_shard() const;

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

const std::vector<Rule>& ModelRules();    // name, model, data
const std::vector<Rule>& TrainRules();    // train, optimizer, schedule, precision
const std::vector<Rule>& RuntimeRules();  // fsdp, parallel, checkpoint, resources, restart, telemetry; last,
                                          // since it looks back at all others

}  // namespace fsdpd
