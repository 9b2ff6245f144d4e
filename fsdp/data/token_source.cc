#include "fsdp/data/token_source.h"

#include <absl/strings/str_format.h>

#include <algorithm>

#include "base/check.h"
#include "fsdp/data/permutation.h"

namespace fsdpd {
namespace {

// Reads the file's tokens from `begin` on into [first, end) of the window.
absl::Status ReadPart(const TokenFile& file, int64_t begin, int64_t first, int64_t end, TokenWindow* out) {
  FSDPD_RETURN_IF_ERROR(file.Read(begin, end - first, out->ids.data() + first));
  return file.ReadMask(begin, end - first, out->counts.data() + first);
}

class FileWindows : public TokenReader {
 public:
  FileWindows(std::unique_ptr<TokenFile> file, const TokenReaderOptions& options)
      : file_(std::move(file)), options_(options) {}

  absl::Status Read(int64_t index, TokenWindow* out) const override {
    const int64_t tokens = file_->tokens();
    const uint64_t epoch_seed = Mix(options_.seed, static_cast<uint64_t>(index / samples()));
    const int64_t window = Permute(epoch_seed, index % samples(), samples());
    const int64_t shift = static_cast<int64_t>(Mix(epoch_seed) % static_cast<uint64_t>(tokens));
    const int64_t begin = (shift + window * options_.window_tokens) % tokens;
    const int64_t before_end = std::min(options_.window_tokens, tokens - begin);
    out->Resize(options_.window_tokens);
    if (before_end < options_.window_tokens) out->detached[before_end] = 1;
    FSDPD_RETURN_IF_ERROR(ReadPart(*file_, begin, 0, before_end, out));
    return ReadPart(*file_, 0, before_end, options_.window_tokens, out);
  }

  int64_t samples() const override { return file_->tokens() / options_.window_tokens; }
  const TokenFile* file() const override { return file_.get(); }

 private:
  const std::unique_ptr<TokenFile> file_;
  const TokenReaderOptions options_;
};

class FileSlices : public TokenReader {
 public:
  FileSlices(std::unique_ptr<TokenFile> file, int64_t window_tokens)
      : file_(std::move(file)), targets_(window_tokens - 1) {}

  absl::Status Read(int64_t index, TokenWindow* out) const override {
    const int64_t begin = index * targets_;
    const int64_t count = std::min(targets_ + 1, file_->tokens() - begin);
    out->Resize(count);
    return ReadPart(*file_, begin, 0, count, out);
  }

  int64_t samples() const override { return (file_->tokens() - 1 + targets_ - 1) / targets_; }
  const TokenFile* file() const override { return file_.get(); }

 private:
  const std::unique_ptr<TokenFile> file_;
  const int64_t targets_;  // Of a slice.
};

class DocumentWindows : public TokenReader {
 public:
  DocumentWindows(std::unique_ptr<TokenFile> file, PackedDocuments documents, std::optional<uint64_t> seed)
      : file_(std::move(file)), documents_(std::move(documents)), seed_(seed) {}

  absl::Status Read(int64_t index, TokenWindow* out) const override {
    int64_t sample = index % samples();
    if (seed_.has_value())
      sample = Permute(Mix(*seed_, static_cast<uint64_t>(index / samples())), sample, samples());
    const std::vector<DocumentRange> ranges = documents_.DocumentsOf(sample);
    int64_t tokens = 0;
    for (const DocumentRange& range : ranges) tokens += range.tokens;
    out->Resize(tokens);
    int64_t first = 0;
    for (const DocumentRange& range : ranges) {
      out->detached[first] = 1;
      FSDPD_RETURN_IF_ERROR(ReadPart(*file_, range.begin, first, first + range.tokens, out));
      first += range.tokens;
    }
    return absl::OkStatus();
  }

  int64_t samples() const override { return documents_.samples(); }
  const TokenFile* file() const override { return file_.get(); }
  const PackedDocuments* documents() const override { return &documents_; }

 private:
  const std::unique_ptr<TokenFile> file_;
  const PackedDocuments documents_;
  const std::optional<uint64_t> seed_;
};

class SyntheticTokens : public TokenReader {
 public:
  explicit SyntheticTokens(const TokenReaderOptions& options) : options_(options) {}

  absl::Status Read(int64_t index, TokenWindow* out) const override {
    const uint64_t window_seed = Mix(options_.seed, static_cast<uint64_t>(index));
    out->Resize(options_.window_tokens);
    std::fill(out->counts.begin(), out->counts.end(), uint8_t{1});
    for (int64_t i = 0; i < options_.window_tokens; ++i) {
      out->ids[i] = static_cast<int64_t>(Mix(window_seed, i) % static_cast<uint64_t>(options_.vocab_size));
    }
    return absl::OkStatus();
  }

  int64_t samples() const override { return 0; }
  const TokenFile* file() const override { return nullptr; }

 private:
  const TokenReaderOptions options_;
};

}  // namespace

void TokenWindow::Resize(int64_t tokens) {
  ids.resize(tokens);
  counts.resize(tokens);
  detached.assign(tokens, 0);
}

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

absl::StatusOr<std::unique_ptr<TokenReader>> MakeFileSlices(std::unique_ptr<TokenFile> file,
                                                            const TokenReaderOptions& options) {
  FSDPD_CHECK(options.window_tokens > 1);
  if (file->tokens() < 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: file is too short for evaluation (got %d tokens, want at least 2)", file->path(),
                        file->tokens()));
  }
  return std::make_unique<FileSlices>(std::move(file), options.window_tokens);
}

absl::StatusOr<std::unique_ptr<TokenReader>> MakeDocumentWindows(std::unique_ptr<TokenFile> file,
                                                                 const PackingOptions& options) {
  FSDPD_ASSIGN_OR_RETURN(PackedDocuments documents, PackedDocuments::Make(*file, options));
  return std::make_unique<DocumentWindows>(std::move(file), std::move(documents), options.seed);
}

std::unique_ptr<TokenReader> MakeSyntheticTokens(const TokenReaderOptions& options) {
  FSDPD_CHECK(options.window_tokens > 1 && options.vocab_size > 0);
  return std::make_unique<SyntheticTokens>(options);
}

}  // namespace fsdpd
