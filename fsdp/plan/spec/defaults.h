// The defaults of a job spec that depend on nothing, in one place: whoever reads a spec that somebody wrote
// (rules, placer, admission, Resolve) reads WithDefaults() of it, and none has a default of its own. What
// follows from other values (kv_heads, global_batch, `auto`) is resolve.h's.
//
// A field that is set keeps its value, 0 included: whether that is a sound one is for the rules to say.
#pragma once

#include <string>
#include <vector>

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// What a default or an `auto` became.
struct Choice {
  std::string field;
  std::string value;
  std::string reason;
};

// Takes any spec, faulty ones too. `choices` gets one entry per value that somebody may want to read about;
// may be null.
v1::JobSpec WithDefaults(const v1::JobSpec& job, std::vector<Choice>* choices);

// The job by another strategy, with gradients as exact on the wire as before, whose default hangs on that.
v1::JobSpec InStrategy(const v1::JobSpec& job, v1::Strategy strategy);

}  // namespace fsdpd
