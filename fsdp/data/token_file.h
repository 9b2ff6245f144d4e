// One file of token ids as a stream: flat, or Megatron's pair of PATH.bin and PATH.idx (megatron_index.h).
// What is read is checked to be in the vocabulary. Beside it there may be a mask, a file of one byte for each
// token, which says whether the token counts as a target: 1 or 0.
//
// Call order: Open, OpenMask where there is one, then the others. Thread safety: const methods may run on
// several threads. Errors: those of input_file.h and megatron_index.h; INVALID_ARGUMENT for a torn last
// token, for an id outside the vocabulary, for a mask of another length than the tokens and for another byte
// in it, and for numpy's .npy. Each names the file and the byte.
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
  // All of the source but its mask.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const TokenSource& source, int64_t vocab_size);
  absl::Status OpenMask(const std::string& path);

  // Of the file that holds the ids: PATH.bin where there are two.
  const std::string& path() const { return file_->path(); }
  int64_t tokens() const { return tokens_; }

  // What tells this file from another of its name, the same for copies elsewhere: "PATH = 640 bytes, 640 of
  // them tokens of 2 bytes, hash of a sample 0123456789abcdef". The sample is its head, its tail and places
  // evenly between: files that differ elsewhere alone look alike.
  absl::StatusOr<std::string> Traits() const;
  absl::StatusOr<std::string> MaskTraits() const;  // Likewise; empty without a mask.

  // Tokens [begin, begin + count) into `out`. REQUIRES: they lie within tokens().
  absl::Status Read(int64_t begin, int64_t count, int64_t* out) const;

  // Whether each of them counts as a target, 1 or 0.
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
  const char* const hint_;           // What to look at when ids are out of range.
  std::unique_ptr<InputFile> mask_;  // Null: every token counts.
};

}  // namespace fsdpd
