// Which tokens a rank trains on: a pure function of seed, step and the sample's number within the global
// batch. Worlds of every size see the same global batches, and a run resumes from numbers alone.
//
// Sample i of step s is number g = (s - 1) x global_batch + i of the run, or counts on from where a run
// before it ended (DataOrigin). A run that passes over some samples takes those that are left instead
// (sample_order.h). Numbers go in blocks of 4096; within a block every source has its weight's share of the
// places (so shares are exact, not drawn), spread by the seed and the same in each block. A source gives its
// windows in its own order (token_source.h), so an epoch of a file takes each window once before any comes
// again. Of n samples and w groups of ranks that read their own (Mesh::DataRank), group r takes samples [r x
// n/w, (r+1) x n/w) in micro-batches, and each of its ranks its part of all of them
// (fsdp/plan/mesh/sequence_partition.h).
//
// Where the spec names the token with which documents end, a sample is the documents that its window happens
// to hold: a first that may have begun before it, a last that may go on behind. What follows an end is no
// target, since the model does not see what it would be told from.
//
// Thread safety: const, several threads may read. Errors: those of token_source.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/data/sample_order.h"
#include "fsdp/data/token_file.h"
#include "fsdp/data/token_source.h"
#include "fsdp/model/unit/documents.h"

namespace fsdpd {

// Who reads one has its memory before: MakeBatch, or a batch_reader.h.
struct Batch {
  at::Tensor tokens;  // [micro_batch, this rank's part of a sequence] int64, on the CPU.
  at::Tensor
      targets;  // The same moved on by one token; kIgnoredTarget (unit.h) where a target does not count.
  int64_t counted = 0;        // Targets that count.
  int64_t document_ends = 0;  // Tokens that documents end with.
  // Where samples are made of documents, else undefined: where each token stands within its own, and which
  // token documents begin with. As UnitInput's, but that `bounds` has room for a document a token.
  at::Tensor positions = {};
  Documents documents = {};
};

// How many entries Batch::documents.bounds has room for.
int64_t BoundsRoom(int64_t rows, int64_t sequence);

Batch MakeBatch(const Spec& spec);

// After `step`, `samples` of the run's had been consumed: with another batch size than this run's, too.
struct DataOrigin {
  int64_t step = 0;
  int64_t samples = 0;                        // Those among them that were passed over count.
  std::vector<SampleRange> passed_over = {};  // As Merged() gives it.
};

class Batches {
 public:
  // Opens every source. REQUIRES: 0 <= rank < spec.mesh.world(), and spec's batch sizes divide.
  static absl::StatusOr<Batches> Open(const Spec& spec, int rank, DataOrigin origin = {});

  // `step` counts from 1 and is after the origin's; `micro_batch` counts from 0. After an error `to` holds
  // what it happens to.
  absl::Status Read(int64_t step, int64_t micro_batch, Batch* to) const;

  // Of each file and mask: "data.tokens[0].path PATH = 640 bytes, ..." (TokenFile::Traits). Reads a little of
  // each.
  absl::StatusOr<std::vector<std::string>> Traits() const;

  // What the step takes over all ranks: from the first sample of it to behind the last, with those between
  // them that are passed over. Its end is DataOrigin::samples of a run that goes on after it.
  SampleRange SamplesOf(int64_t step) const;

 private:
  struct Source {
    std::unique_ptr<TokenReader> reader;
    int64_t places = 0;  // Of a block's.
  };
  struct Place {
    int64_t source = 0;
    int64_t ordinal = 0;  // Among the source's places of the block.
  };

  Batches(const Spec& spec, int rank, DataOrigin origin);
  void SpreadPlaces();
  int64_t NumberOf(int64_t step, int64_t sample) const;
  absl::Status ReadSample(int64_t number, TokenWindow* out) const;

  Spec spec_;
  int64_t data_rank_;
  SequencePartition cut_;
  DataOrigin origin_;
  std::vector<Source> sources_;
  std::vector<Place> block_;
};

// The validation data, cut into samples in file order, the same each time. Sample k of a file starts at token
// k x sequence_length and takes one token more for its last target, so each token but a file's first is a
// target once. A file's last sample may be short: targets beyond its end are ignored ones.
//
// Round k holds samples [k x data ranks x micro_batch, ...), of which each takes micro_batch neighbours.
// Every rank runs every round: samples beyond the last are rows of ignored targets, so uneven ends need no
// agreement.
//
// Thread safety and errors as above; a file without a single target is INVALID_ARGUMENT.
class EvaluationBatches {
 public:
  // REQUIRES: 0 <= rank < spec.mesh.world(), and the spec has evaluation and validation files.
  static absl::StatusOr<EvaluationBatches> Open(const Spec& spec, int rank);

  absl::StatusOr<std::vector<std::string>> Traits() const;  // As Batches'.
  int64_t rounds() const { return rounds_; }
  absl::Status Read(int64_t round, Batch* to) const;  // As above. REQUIRES: 0 <= round < rounds().

 private:
  struct File {
    std::unique_ptr<TokenFile> file;
    int64_t samples = 0;
  };

  EvaluationBatches(const Spec& spec, int rank);
  absl::Status ReadSample(int64_t sample, int64_t row, Batch* batch) const;

  Spec spec_;
  int64_t data_rank_;
  SequencePartition cut_;
  std::vector<File> files_;
  int64_t samples_ = 0;
  int64_t rounds_ = 0;
};

// Places of a block for each weight: in proportion, at least one each, summing to `block`.
// REQUIRES: weights are positive and no more than `block`.
std::vector<int64_t> SharePlaces(const std::vector<double>& weights, int64_t block);

}  // namespace fsdpd
