// Resolution of a job spec: fills every default (defaults.h) and every `auto`, and records the reason of each
// choice. `fsdpctl plan` prints the result, and the coordinator stores it, so that a stored job keeps its
// meaning when a default changes.
//
// REQUIRES: CheckJob() (rules.h) found no error. Idempotent: resolving a resolved spec changes nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/spec/defaults.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// `budget_bytes_per_rank`: memory that nodes offer, used for memory_budget: auto. 0 if unknown;
// memory_budget_bytes then stays unset. `choices` receives one entry per value chosen here; may be null.
v1::JobSpec Resolve(const v1::JobSpec& job, int64_t budget_bytes_per_rank, std::vector<Choice>* choices);

// The inverse: the memory that a node must offer for a rank whose step peaks at `peak_bytes`. `margin`: false
// for plans of releases that reserved no margin, so that they can still be placed where they fitted before.
int64_t OfferNeeded(const v1::JobSpec& resolved, int64_t peak_bytes, bool margin);

}  // namespace fsdpd
