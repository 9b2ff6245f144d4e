// Which tokens a rank trains on: a pure function of seed, step and the sample's number within the global
// batch. Worlds of every size see the same global batches, and a run resumes from its step number alone.
//
// Sample i of step s is number g = s x global_batch + i of the run. Numbers go in blocks of 4096; within a
// block every source has its weight's share of the places (so shares are exact, not drawn), in a shuffled
// order. Rank r of w takes samples [r x n/w, (r+1) x n/w) in micro-batches.
//
// Thread safety: const, several threads may read. Errors: those of token_source.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "fsdp/data/token_source.h"

namespace fsdpd {

struct Batch {
  at::Tensor tokens;   // [micro_batch, sequence_length] int64, on the CPU.
  at::Tensor targets;  // The same moved on by one token; kIgnoredTarget (unit.h) where a target does not count.
  int64_t counted = 0;  // Targets that count.
};

class Batches {
 public:
  // Opens every source. REQUIRES: 0 <= rank < spec.world, and spec's batch sizes divide.
  static absl::StatusOr<Batches> Open(const Spec& spec, int rank);

  // `step` counts from 1, `micro_batch` from 0 to spec.micro_batches_per_step() - 1.
  absl::StatusOr<Batch> Read(int64_t step, int64_t micro_batch) const;

 private:
  struct Source {
    std::unique_ptr<TokenReader> reader;
    int64_t places = 0;  // Of a block's 4096.
  };

  Batches(const Spec& spec, int rank) : spec_(spec), rank_(rank) {}
  absl::Status ReadSample(int64_t number, int64_t* out) const;

  Spec spec_;
  int rank_;
  std::vector<Source> sources_;
};

// The validation data, cut into samples in file order: round k holds samples [k x world x micro_batch, ...), of
// which each rank takes micro_batch neighbours. Every rank runs every round: samples beyond the last are a row of
// ignored targets, so uneven ends need no agreement.
class EvaluationBatches {
 public:
  // REQUIRES: spec.evaluation.every_steps > 0.
  static absl::StatusOr<EvaluationBatches> Open(const Spec& spec, int rank);

  int64_t rounds() const { return rounds_; }
  absl::StatusOr<Batch> Read(int64_t round) const;

 private:
  EvaluationBatches(const Spec& spec, int rank) : spec_(spec), rank_(rank) {}

  Spec spec_;
  int rank_;
  std::vector<std::unique_ptr<TokenReader>> readers_;
  int64_t samples_ = 0;
  int64_t rounds_ = 0;
};

// Places of a block for each weight: in proportion, at least one each, summing to `block`.
// REQUIRES: weights are positive and no more than `block`.
std::vector<int64_t> SharePlaces(const std::vector<double>& weights, int64_t block);

}  // namespace fsdpd
