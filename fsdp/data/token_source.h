// Sources of samples: a token file, or random ids. A source is a sequence of windows of up to `window_tokens`
// tokens. Reading window k needs no state, so a run resumes from its step number only.
//
// For training, windows repeat in passes over the file (epochs), each in another order. FileWindows are a
// ring of tokens that is split into windows; each epoch offsets the boundaries, so that the uncovered tail of
// the file differs between epochs. DocumentWindows are samples of whole documents (packed_documents.h), the
// same in each epoch.
//
// For evaluation, windows are in file order: FileSlices, and DocumentWindows that are not shuffled.
//
// Const methods are thread-safe. Errors: those of token_file.h and packed_documents.h, and INVALID_ARGUMENT
// for a file that is too short.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/data/packed_documents.h"
#include "fsdp/data/token_file.h"

namespace fsdpd {

struct TokenWindow {
  std::vector<int64_t> ids;       // Each below the vocabulary size.
  std::vector<uint8_t> counts;    // By id: 1 if it counts as a target, else 0.
  std::vector<uint8_t> detached;  // By id: 1 if it does not follow the one before it, else 0.

  // Sets the size; nothing is detached.
  void Resize(int64_t tokens);
};

class TokenReader {
 public:
  virtual ~TokenReader() = default;

  // `index` counts all windows taken from this source so far: index / samples() is the epoch.
  virtual absl::Status Read(int64_t index, TokenWindow* out) const = 0;

  virtual int64_t samples() const = 0;        // Windows of an epoch; 0 for random ids, which do not repeat.
  virtual const TokenFile* file() const = 0;  // Null for random ids.
  virtual const PackedDocuments* documents() const { return nullptr; }  // Null for a stream of tokens.
};

struct TokenReaderOptions {
  int64_t window_tokens = 0;  // Sequence length + 1: inputs and targets overlap in all but one token.
  int64_t vocab_size = 0;     // Larger ids are an error when read.
  uint64_t seed = 1;
};

absl::StatusOr<std::unique_ptr<TokenReader>> MakeFileWindows(std::unique_ptr<TokenFile> file,
                                                             const TokenReaderOptions& options);

// Slice k starts at token k x (window_tokens - 1), so each token except for the first is a target once. The
// last slice may be shorter.
absl::StatusOr<std::unique_ptr<TokenReader>> MakeFileSlices(std::unique_ptr<TokenFile> file,
                                                            const TokenReaderOptions& options);

// Shuffles documents and samples by options.seed, if it is set.
absl::StatusOr<std::unique_ptr<TokenReader>> MakeDocumentWindows(std::unique_ptr<TokenFile> file,
                                                                 const PackingOptions& options);

// Ids are a hash of seed, index and position, uniform over 0 .. options.vocab_size-1.
std::unique_ptr<TokenReader> MakeSyntheticTokens(const TokenReaderOptions& options);

}  // namespace fsdpd
