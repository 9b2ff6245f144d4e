// Constant defaults of a job spec, in one place. Every reader of a spec (rules, placer, admission, Resolve)
// calls WithDefaults(); none has a default of its own. Defaults that depend on other fields (kv_heads,
// `auto`) are in resolve.h, except for that of the global batch.
//
// A field that is set keeps its value, including 0; the rules judge whether the value is valid.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

inline constexpr int64_t kMaxLoraRank = 1024;
inline constexpr double kMaxLoraAlpha = 1e6;

// The value chosen for a default or an `auto`.
struct Choice {
  std::string field;
  std::string value;
  std::string reason;
};

// Accepts any spec, including invalid ones. `choices` receives one entry per value worth reporting to a user;
// may be null.
v1::JobSpec WithDefaults(const v1::JobSpec& job, std::vector<Choice>* choices);

// Samples of a step: train.global_batch, or its default. Accepts any spec; products are saturated to int64.
int64_t GlobalBatchOf(const v1::JobSpec& job);

// `filled`: a result of WithDefaults(). All ranks, and those that work on the same sample.
int64_t RanksOf(const v1::JobSpec& filled);
int64_t RanksPerSample(const v1::JobSpec& filled);

// The job writes checkpoints during training, not only at its end.
bool SavesBetween(const v1::Checkpoint& checkpoint);

// The job with another sharding strategy. Keeps the communication precision of gradients, whose default
// depends on the strategy.
v1::JobSpec InStrategy(const v1::JobSpec& job, v1::Strategy strategy);

}  // namespace fsdpd
