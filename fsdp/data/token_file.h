// A file of token ids as a stream: flat, or Megatron's pair of PATH.bin and PATH.idx (megatron_index.h). Ids
// are checked against the vocabulary size when read. An optional mask file has one byte per token, 1 or 0:
// whether the token counts as a target.
//
// Call order: Open, OpenMask if there is one, then the others. Const methods are thread-safe. Errors: those
// of input_file.h and megatron_index.h; INVALID_ARGUMENT for an incomplete last token, an id outside of the
// vocabulary, a mask whose length differs from the tokens', other mask bytes, and numpy's .npy. Each names
// the file and the byte.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "fsdp/data/input_file.h"
#include "fsdp/data/stored_id.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

class TokenFile {
 public:
  // Opens everything except the mask.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const TokenSource& source, int64_t vocab_size);
  absl::Status OpenMask(const std::string& path);

  // Path of the file with the ids: PATH.bin for a pair.
  const std::string& path() const { return file_->path(); }
  int64_t tokens() const { return tokens_; }

  // Distinguishes this file from others of the same name; equal for copies elsewhere: "PATH = 640 bytes, 640
  // of them tokens of 2 bytes, hash of a sample 0123456789abcdef". The sample is the head, the tail and
  // evenly spaced places; files that differ only elsewhere look equal.
  absl::StatusOr<std::string> Traits() const;
  absl::StatusOr<std::string> MaskTraits() const;  // Same for the mask; empty without a mask.

  // Reads tokens [begin, begin + count) into `out`. REQUIRES: they are within tokens().
  absl::Status Read(int64_t begin, int64_t count, int64_t* out) const;

  // Whether each of these tokens counts as a target: 1 or 0.
  absl::Status ReadMask(int64_t begin, int64_t count, uint8_t* out) const;

 private:
  TokenFile(std::unique_ptr<InputFile> file, StoredId type, int64_t tokens, int64_t vocab_size,
            const char* hint)
      : file_(std::move(file)), type_(type), tokens_(tokens), vocab_size_(vocab_size), hint_(hint) {}
  static absl::StatusOr<std::unique_ptr<TokenFile>> OpenMegatron(const std::string& path, int64_t vocab_size);

  const std::unique_ptr<InputFile> file_;
  const StoredId type_;
  const int64_t tokens_;
  const int64_t vocab_size_;
  const char* const hint_;           // Advice in the error for out-of-range ids.
  std::unique_ptr<InputFile> mask_;  // Null: every token counts.
};

}  // namespace fsdpd
