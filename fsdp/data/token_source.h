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
#include <string>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

class TokenReader {
 public:
  virtual ~TokenReader() = default;

  // Writes `window_tokens` ids, each below the vocabulary's size, to `out`. `index` counts all windows ever
  // taken from this source: index / windows is the epoch.
  virtual absl::Status Read(int64_t index, int64_t* out) const = 0;

  // Its file's; empty where there is none.
  virtual absl::StatusOr<std::string> Traits() const = 0;
};

struct TokenReaderOptions {
  int64_t window_tokens = 0;  // Sequence length + 1: inputs and targets overlap by all but one token.
  int64_t vocab_size = 0;     // Ids at or above it are an error, checked as they are read.
  uint64_t seed = 1;
};

absl::StatusOr<std::unique_ptr<TokenReader>> OpenTokenFile(const TokenSource& file,
                                                           const TokenReaderOptions& options);

// Ids are a hash of seed, index and place, uniform over 0 .. options.vocab_size-1.
std::unique_ptr<TokenReader> MakeSyntheticTokens(const TokenReaderOptions& options);

}  // namespace fsdpd
