// Input data of a rank: opens its files, verifies that all ranks have the same ones, and reads batches ahead.
//
// Nodes may have local copies of the files, and an outdated or partial copy would silently train on different
// samples. So ranks compare the size and hash of each file before the first step (agreement.h).
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
  DataOrigin origin;       // Position in the data before the first step.
  Store* store = nullptr;  // To compare files with other ranks; null: not compared.
  int64_t held = 1;        // Number of steps whose batches are in use at a time.
  Clock* clock = Clock::Real();
  // For tests: called before the batches of a step are read, on the reading thread. May be empty.
  std::function<void(int64_t step)> before_read = {};
};

// The number of steps of `epochs` passes over `samples` samples, rounded up, at least 1.
double StepsOfEpochs(double epochs, int64_t samples, int64_t global_batch);

// The number of steps of the spec with `epochs`. Rank 0 opens the files of data.tokens, reads them if
// documents are packed, and publishes the number; so all ranks have the same one before they compare their
// programs. Called by all ranks. Errors: those of batches.h, and INVALID_ARGUMENT for more than 10^9 steps;
// other ranks return rank 0's error as a peer's. `by_all`: no other node can have other files.
absl::StatusOr<int64_t> AgreeOnSteps(Store* store, int rank, const Spec& spec, double epochs, bool by_all);

struct RankData {
  // Called by all ranks if they have a store.
  static absl::StatusOr<RankData> Open(const RankDataOptions& options);

  // One line per file, from Batches::Traits() and EvaluationBatches::Traits(). Reads from each file.
  absl::StatusOr<std::vector<std::string>> Traits() const;
  std::vector<std::string> Warnings() const;  // For users: documents that are longer than a sample.

  std::shared_ptr<const Batches> batches;  // Shared with the reader thread, which may outlive this object.
  std::unique_ptr<BatchReader> training;   // From the step after the origin to the last.
  // This and `evaluation` are null if the spec has no evaluation.
  std::shared_ptr<const EvaluationBatches> validation;
  // A round counts as a step; rounds of all evaluations are numbered consecutively, from 1.
  std::unique_ptr<BatchReader> evaluation;
  int64_t rounds = 0;  // Rounds per evaluation.
};

}  // namespace fsdpd
