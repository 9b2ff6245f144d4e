// Packing of whole documents into samples: the documents of a token file, and the sample that each belongs
// to.
//
// A document is longer than a sample if it has more than `sample_tokens` tokens; it is truncated, split into
// several documents, or dropped. Documents without a target (fewer than two tokens) are left out. The
// others are shuffled by the seed, or stay in file order, and are divided into groups of kGroup. Each group
// is packed by best-fit decreasing: from the longest document to the shortest, each goes into the fullest
// sample that has space for it. So the samples are a function of the file and the options only. Documents of
// a sample are sorted by length. In file order, samples are sorted by their first document.
//
// Make reads the whole file. Memory: 24 bytes per document during Make, then 12, and 8 per sample. Const
// methods are thread-safe. Errors: those of token_file.h, and INVALID_ARGUMENT if no document ends, or none
// can be used.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "fsdp/data/token_file.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct PackingOptions {
  int64_t sample_tokens = 0;  // Capacity of a sample: sequence length + 1. At least 2, at most 2^31 - 1.
  int64_t end_token = 0;      // Ends a document. The end of the file does too.
  TooLong too_long = TooLong::kTruncate;
  std::optional<uint64_t> seed = std::nullopt;  // Unset: file order.
};

// Part of a file: tokens [begin, begin + tokens).
struct DocumentRange {
  int64_t begin = 0;
  int64_t tokens = 0;

  friend bool operator==(const DocumentRange& a, const DocumentRange& b) {
    return a.begin == b.begin && a.tokens == b.tokens;
  }
};

const char* HandlingOf(TooLong too_long);  // "truncated", "split" or "dropped".

class PackedDocuments {
 public:
  static constexpr int64_t kGroup = 16384;

  static absl::StatusOr<PackedDocuments> Make(const TokenFile& file, const PackingOptions& options);

  int64_t samples() const { return static_cast<int64_t>(sample_ends_.size()); }
  std::vector<DocumentRange> DocumentsOf(int64_t sample) const;  // REQUIRES: 0 <= sample < samples().

  int64_t documents() const { return documents_; }  // In the file.
  int64_t too_long() const { return too_long_; }    // Number of these that were longer than a sample.
  // Equal for the same documents in the same samples.
  uint64_t Hash() const;
  // Share of the samples' tokens that are padding, from 0 to 1.
  double padding() const;

 private:
  struct Found;

  explicit PackedDocuments(const PackingOptions& options) : options_(options) {}
  void Add(int64_t begin, int64_t end, Found* found);
  absl::StatusOr<Found> Find(const TokenFile& file);
  void Pack(const Found& found);
  void PackGroup(const Found& found, std::vector<int64_t> group);

  PackingOptions options_;
  int64_t documents_ = 0;
  int64_t too_long_ = 0;
  int64_t packed_tokens_ = 0;
  // By document, in the order of samples.
  std::vector<int64_t> begins_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> sample_ends_;  // By sample: one past its last document.
};

}  // namespace fsdpd
