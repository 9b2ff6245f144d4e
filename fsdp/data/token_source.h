// Source of training samples: a token file, or random ids. A source is a ring of windows of `window_tokens`
// tokens. Reading window k of any epoch needs no state, so a run resumes from its step number only.
//
// Files: each epoch visits all windows in its own order, and offsets the window boundaries, so that the
// uncovered tail of the file differs between epochs.
//
// Const methods are thread-safe. Errors: those of token_file.h, and INVALID_ARGUMENT for a file shorter than
// one window.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/data/token_file.h"

namespace fsdpd {

struct TokenWindow {
  std::vector<int64_t> ids;     // Each below the vocabulary size.
  std::vector<uint8_t> counts;  // By id: 1 if it counts as a target, else 0.
  int64_t file_end = 0;         // Those from here on do not follow the ones before them: the ring's seam. 0:
                                // the window has none within.
};

class TokenReader {
 public:
  virtual ~TokenReader() = default;

  // Reads a window of `window_tokens` ids. `index` counts all windows taken from this source so far: index /
  // windows is the epoch.
  virtual absl::Status Read(int64_t index, TokenWindow* out) const = 0;

  virtual const TokenFile* file() const = 0;  // Null for random ids.
};

struct TokenReaderOptions {
  int64_t window_tokens = 0;  // Sequence length + 1: inputs and targets overlap in all but one token.
  int64_t vocab_size = 0;     // Larger ids are an error when read.
  uint64_t seed = 1;
};

absl::StatusOr<std::unique_ptr<TokenReader>> MakeFileWindows(std::unique_ptr<TokenFile> file,
                                                             const TokenReaderOptions& options);

// Ids are a hash of seed, index and position, uniform over 0 .. options.vocab_size-1.
std::unique_ptr<TokenReader> MakeSyntheticTokens(const TokenReaderOptions& options);

}  // namespace fsdpd
