// What a rank reads: its files opened, found to be those of all ranks, and read ahead of its steps.
//
// Where a job trains or evaluates on files, nodes may have copies of their own, and one that is older or half
// there would train on other samples without a word. So ranks compare size and hash of each before a step is
// done (agreement.h).
//
// Errors of Open: those of batches.h, agreement.h and batch_reader.h.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "fsdp/comm/store.h"
#include "fsdp/data/batch_reader.h"
#include "fsdp/data/batches.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct RankDataOptions {
  const Spec* spec = nullptr;
  int rank = 0;
  DataOrigin origin;       // What the first step goes on from.
  Store* store = nullptr;  // Through which ranks compare their files; null: they do not.
  int64_t held = 1;        // Steps whose batches are in use at a time.
  Clock* clock = Clock::Real();
  // For tests: before a step's batches are read, on the thread that reads them. May be empty.
  std::function<void(int64_t step)> before_read = {};
};

struct RankData {
  // All ranks call it, if they have a store.
  static absl::StatusOr<RankData> Open(const RankDataOptions& options);

  // Of the files, a line each: Batches::Traits() and EvaluationBatches'. Reads of each.
  absl::StatusOr<std::vector<std::string>> Traits() const;

  std::shared_ptr<const Batches> batches;  // Shared with the thread that reads, which may outlive a rank.
  std::unique_ptr<BatchReader> training;   // From the step after the origin's to the spec's last.
  // Null where the spec asks for no evaluation, as the next.
  std::shared_ptr<const EvaluationBatches> validation;
  // A round is a step, and the rounds of all evaluations follow each other, from 1.
  std::unique_ptr<BatchReader> evaluation;
  int64_t rounds = 0;  // Of one evaluation.
};

}  // namespace fsdpd
