#include "fsdp/data/token_source.h"

#include <absl/strings/str_format.h>

#include <algorithm>

#include "base/check.h"
#include "fsdp/data/permutation.h"

namespace fsdpd {
namespace {

class FileWindows : public TokenReader {
 public:
  FileWindows(std::unique_ptr<TokenFile> file, const TokenReaderOptions& options)
      : file_(std::move(file)), options_(options) {}

  absl::Status Read(int64_t index, TokenWindow* out) const override {
    const int64_t tokens = file_->tokens();
    const int64_t windows = tokens / options_.window_tokens;
    const uint64_t epoch_seed = Mix(options_.seed, static_cast<uint64_t>(index / windows));
    const int64_t window = Permute(epoch_seed, index % windows, windows);
    const int64_t shift = static_cast<int64_t>(Mix(epoch_seed) % static_cast<uint64_t>(tokens));
    const int64_t begin = (shift + window * options_.window_tokens) % tokens;
    const int64_t before_end = std::min(options_.window_tokens, tokens - begin);
    out->ids.resize(options_.window_tokens);
    out->counts.resize(options_.window_tokens);
    out->file_end = before_end < options_.window_tokens ? before_end : 0;
    FSDPD_RETURN_IF_ERROR(ReadPart(begin, 0, before_end, out));
    return ReadPart(0, before_end, options_.window_tokens, out);
  }

  const TokenFile* file() const override { return file_.get(); }

 private:
  // Reads the file's tokens starting at `begin` into [first, end) of the window.
  absl::Status ReadPart(int64_t begin, int64_t first, int64_t end, TokenWindow* out) const {
    FSDPD_RETURN_IF_ERROR(file_->Read(begin, end - first, out->ids.data() + first));
    return file_->ReadMask(begin, end - first, out->counts.data() + first);
  }

  const std::unique_ptr<TokenFile> file_;
  const TokenReaderOptions options_;
};

class SyntheticTokens : public TokenReader {
 public:
  explicit SyntheticTokens(const TokenReaderOptions& options) : options_(options) {}

  absl::Status Read(int64_t index, TokenWindow* out) const override {
    const uint64_t window_seed = Mix(options_.seed, static_cast<uint64_t>(index));
    out->ids.resize(options_.window_tokens);
    out->counts.assign(options_.window_tokens, 1);
    out->file_end = 0;
    for (int64_t i = 0; i < options_.window_tokens; ++i) {
      out->ids[i] = static_cast<int64_t>(Mix(window_seed, i) % static_cast<uint64_t>(options_.vocab_size));
    }
    return absl::OkStatus();
  }

  const TokenFile* file() const override { return nullptr; }

 private:
  const TokenReaderOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenReader>> MakeFileWindows(std::unique_ptr<TokenFile> file,
                                                             const TokenReaderOptions& options) {
  FSDPD_CHECK(options.window_tokens > 1);
  if (file->tokens() < options.window_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: file is too short (got %d tokens, want at least %d: sequence_length + 1)",
                        file->path(), file->tokens(), options.window_tokens));
  }
  return std::make_unique<FileWindows>(std::move(file), options);
}

std::unique_ptr<TokenReader> MakeSyntheticTokens(const TokenReaderOptions& options) {
  FSDPD_CHECK(options.window_tokens > 1 && options.vocab_size > 0);
  return std::make_unique<SyntheticTokens>(options);
}

}  // namespace fsdpd
