// Constant defaults of a job spec, in one place. Every reader of a spec (rules, placer, admission, Resolve)
// calls WithDefaults(); none has a default of its own. Defaults that depend on other fields (kv_heads,
// global_batch, `auto`) are in resolve.h.
//
// A field that is set keeps its value, including 0; the rules judge whether the value is valid.
#pragma once

#include <string>
#include <vector>

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// The value chosen for a default or an `auto`.
struct Choice {
  std::string field;
  std::string value;
  std::string reason;
};

// Accepts any spec, including invalid ones. `choices` receives one entry per value worth reporting to a user;
// may be null.
v1::JobSpec WithDefaults(const v1::JobSpec& job, std::vector<Choice>* choices);

// The job with another sharding strategy. Keeps the communication precision of gradients, whose default
// depends on the strategy.
v1::JobSpec InStrategy(const v1::JobSpec& job, v1::Strategy strategy);

}  // namespace fsdpd
