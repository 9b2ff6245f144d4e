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
  at::Tensor targets;  // The same moved on by one token.
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

// Places of a block for each weight: in proportion, at least one each, summing to `block`.
// REQUIRES: weights are positive and no more than `block`.
std::vector<int64_t> SharePlaces(const std::vector<double>& weights, int64_t block);

}  // namespace fsdpd
