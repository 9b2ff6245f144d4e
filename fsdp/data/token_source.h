// Where training samples come from: a file of tokens, or random ids. A source is a ring of windows of
// `window_tokens` tokens each; reading window k of any epoch needs no state, so a run resumes from its step
// number alone.
//
// File: epoch e goes through all windows in an order of its own and starts its cuts at an offset of its own,
// so that the tail that no window covers is another one each time.
//
// Thread safety: const methods may run on several threads. Errors: those of token_file.h, and
// INVALID_ARGUMENT for a file shorter than one window.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/data/token_file.h"

namespace fsdpd {

struct TokenWindow {
  std::vector<int64_t> ids;     // Each below the vocabulary's size.
  std::vector<uint8_t> counts;  // By id, 1 where it counts as a target and 0 where it does not.
  int64_t file_end = 0;         // Those from here on do not follow the ones before them: the ring's seam. 0:
                                // the window has none within.
};

class TokenReader {
 public:
  virtual ~TokenReader() = default;

  // A window of `window_tokens` ids. `index` counts all windows ever taken from this source: index / windows
  // is the epoch.
  virtual absl::Status Read(int64_t index, TokenWindow* out) const = 0;

  virtual const TokenFile* file() const = 0;  // Null where there is none.
};

struct TokenReaderOptions {
  int64_t window_tokens = 0;  // Sequence length + 1: inputs and targets overlap by all but one token.
  int64_t vocab_size = 0;     // Ids at or above it are an error, checked as they are read.
  uint64_t seed = 1;
};

absl::StatusOr<std::unique_ptr<TokenReader>> MakeFileWindows(std::unique_ptr<TokenFile> file,
                                                             const TokenReaderOptions& options);

// Ids are a hash of seed, index and place, uniform over 0 .. options.vocab_size-1.
std::unique_ptr<TokenReader> MakeSyntheticTokens(const TokenReaderOptions& options);

}  // namespace fsdpd
