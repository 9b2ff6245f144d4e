// Fills every default (defaults.h) and every `auto` of a job spec and says why: what `fsdpctl plan` prints
// and what is stored, so that a job means the same tomorrow when a default has changed.
//
// REQUIRES: CheckJob() (rules.h) found no error. Resolving a resolved spec changes nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/spec/defaults.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

// `budget_bytes_per_rank`: what the nodes offer, for memory_budget auto; 0 when not known, which leaves
// memory_budget_bytes unset. `choices` gets one entry per value that this function chose; may be null.
v1::JobSpec Resolve(const v1::JobSpec& job, int64_t budget_bytes_per_rank, std::vector<Choice>* choices);

// The other way round: what a node must offer for a rank whose step needs `peak_bytes`. `margin`: false for a
// plan by a release that left none, which must still be placed where it fitted.
int64_t OfferNeeded(const v1::JobSpec& resolved, int64_t peak_bytes, bool margin);

}  // namespace fsdpd
