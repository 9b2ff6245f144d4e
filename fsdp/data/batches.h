// Data sampling: which tokens a rank trains on, as a pure function of seed, step and the sample's index in
// the global batch. Global batches do not depend on the world size, and a run resumes from numbers only.
//
// Sample i of step s has number g = (s - 1) x global_batch + i, or continues from where an earlier run ended
// (DataOrigin). A run that skips samples takes the remaining ones instead (sample_order.h). Numbers are
// divided into blocks of 4096. Within a block every source has a number of places that is exactly
// proportional to its weight, spread by the seed, the same in each block. A source returns its windows in its
// own order (token_source.h), so an epoch of a file uses each window once. With n samples and w data-parallel
// groups (Mesh::DataRank), group r takes samples [r x n/w, (r+1) x n/w) in micro-batches; with context
// parallelism each rank of the group takes its part of every sample (fsdp/plan/mesh/sequence_partition.h).
//
// If the spec has an end-of-document token, a sample consists of the documents in its window: the first may
// have started before it, the last may continue after it, unless whole documents are packed. The token after
// a document's end is not a target, since the model does not see the document it belongs to. Padding of a
// sample is a document without targets.
//
// Const methods are thread-safe. Errors: those of token_source.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/data/sample_order.h"
#include "fsdp/data/token_file.h"
#include "fsdp/data/token_source.h"
#include "fsdp/model/unit/documents.h"

namespace fsdpd {

// The caller allocates it before reading: MakeBatch, or batch_reader.h.
struct Batch {
  at::Tensor tokens;    // [micro_batch, this rank's part of a sequence] int64, on the CPU.
  at::Tensor targets;   // The next token of each; kIgnoredTarget (unit.h) for targets that do not count.
  int64_t counted = 0;  // Number of targets that count.
  int64_t document_ends = 0;  // Number of end-of-document tokens.
  // Only for packed documents: the position of each token in its document, and the first tokens of documents.
  // As in UnitInput, except that `bounds` has capacity for one document per token.
  at::Tensor positions = {};
  Documents documents = {};
};

// Capacity of Batch::documents.bounds.
int64_t MaxBounds(int64_t rows, int64_t sequence);

Batch MakeBatch(const Spec& spec);

// State of a previous run: `samples` samples were consumed up to `step`, possibly with another batch size.
struct DataOrigin {
  int64_t step = 0;
  int64_t samples = 0;                            // Including those that were skipped.
  std::vector<SampleRange> skipped_samples = {};  // Skipped samples, as returned by Merged().
};

class Batches {
 public:
  // Opens every source. REQUIRES: 0 <= rank < spec.mesh.world(), and batch sizes are divisible.
  static absl::StatusOr<Batches> Open(const Spec& spec, int rank, DataOrigin origin = {});

  // `step` is 1-based and after the origin's; `micro_batch` is 0-based. After an error the contents of `to`
  // are unspecified.
  absl::Status Read(int64_t step, int64_t micro_batch, Batch* to) const;

  // One line per file and mask: "data.tokens[0].path PATH = 640 bytes, ..." (TokenFile::Traits), and one per
  // file of packed documents. Reads a small part of each.
  absl::StatusOr<std::vector<std::string>> Traits() const;

  int64_t samples_per_epoch() const;  // Over all files; 0 for random ids.

  // For users: documents that are longer than a sample. At most one.
  std::vector<std::string> Warnings() const;
  std::vector<std::string> PackingNotes() const;  // For logs: one per file of packed documents.

  // The samples that the step takes over all ranks: from its first sample to one past the last, including
  // skipped ones in between. Its end is DataOrigin::samples of a run that continues after it.
  SampleRange SamplesOf(int64_t step) const;

 private:
  struct Source {
    std::unique_ptr<TokenReader> reader;
    int64_t places = 0;  // Number of places in a block.
  };
  struct Place {
    int64_t source = 0;
    int64_t ordinal = 0;  // Index among the source's places of the block.
  };

  Batches(const Spec& spec, int rank, DataOrigin origin);
  void SpreadPlaces();
  int64_t NumberOf(int64_t step, int64_t sample) const;
  absl::Status ReadSample(int64_t number, TokenWindow* out) const;

  Spec spec_;
  int64_t data_rank_;
  SequencePartition partition_;
  DataOrigin origin_;
  std::vector<Source> sources_;
  std::vector<Place> block_;
};

// Validation data, divided into samples in file order, always the same (MakeFileSlices, MakeDocumentWindows).
// A sample may be short: targets past its end are kIgnoredTarget.
//
// Round k holds samples [k x data ranks x micro_batch, ...), of which each data rank takes micro_batch
// consecutive ones. Every rank runs every round: past the last sample, rows have only ignored targets, so
// uneven ends need no coordination.
//
// Thread safety and errors as above; a file without targets is INVALID_ARGUMENT.
class EvaluationBatches {
 public:
  // REQUIRES: 0 <= rank < spec.mesh.world(), and the spec has evaluation and validation files.
  static absl::StatusOr<EvaluationBatches> Open(const Spec& spec, int rank);

  absl::StatusOr<std::vector<std::string>> Traits() const;  // These are as Batches'.
  std::vector<std::string> Warnings() const;
  std::vector<std::string> PackingNotes() const;
  int64_t rounds() const { return rounds_; }
  absl::Status Read(int64_t round, Batch* to) const;  // As above. REQUIRES: 0 <= round < rounds().

 private:
  EvaluationBatches(const Spec& spec, int rank);
  absl::Status ReadSample(int64_t sample, int64_t row, Batch* batch) const;

  Spec spec_;
  int64_t data_rank_;
  SequencePartition partition_;
  std::vector<std::unique_ptr<TokenReader>> files_;
  int64_t samples_ = 0;
  int64_t rounds_ = 0;
};

// Number of a block's places per weight: proportional, at least one each, with a sum of `block`. REQUIRES:
// weights are positive, and there are at most `block` of them.
std::vector<int64_t> SharePlaces(const std::vector<double>& weights, int64_t block);

}  // namespace fsdpd
