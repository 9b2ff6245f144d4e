#include "fsdp/data/token_file.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "fsdp/data/megatron_index.h"

namespace fsdpd {
namespace {

// Samples of one page each: few enough reads for up to a thousand files on every rank.
constexpr int64_t kSamples = 8;
constexpr int64_t kSampleBytes = 4096;

// Rejects .npy, whose header would be read as tokens or mask bytes. REQUIRES: `file` is a flat file.
absl::Status RefuseNumpyHeader(const InputFile& file, const char* written_with) {
  constexpr absl::string_view kMagic = "\x93NUMPY";
  char begin[kMagic.size()];
  if (file.size() < static_cast<int64_t>(kMagic.size())) return absl::OkStatus();
  FSDPD_RETURN_IF_ERROR(file.Read(0, kMagic.size(), begin));
  if (absl::string_view(begin, kMagic.size()) != kMagic) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      file.path(), ": .npy files are not supported; write the array without a header: ", written_with));
}

StoredId FlatIdOf(TokenType type) {
  FSDPD_CHECK(type != TokenType::kMegatron);  // Determined by the index.
  if (type == TokenType::kU8) return StoredId::kU8;
  return type == TokenType::kU16 ? StoredId::kU16 : StoredId::kU32;
}

absl::StatusOr<uint64_t> HashOfSample(const InputFile& file) {
  const int64_t bytes = std::min(kSampleBytes, file.size());
  std::vector<char> sample(kSamples * bytes);
  for (int64_t i = 0; i < kSamples; ++i) {
    // Divides first to avoid overflow with large files.
    const int64_t begin =
        i == kSamples - 1 ? file.size() - bytes : (file.size() - bytes) / (kSamples - 1) * i;
    FSDPD_RETURN_IF_ERROR(file.Read(begin, bytes, sample.data() + i * bytes));
  }
  return XXH64(sample.data(), sample.size(), /*seed=*/0);
}

// Opens one file of a Megatron pair, with a hint for users who named only one of the two.
absl::StatusOr<std::unique_ptr<InputFile>> OpenHalf(const std::string& path, const char* extension) {
  auto file = InputFile::Open(path + extension);
  const bool names_one = absl::EndsWith(path, ".bin") || absl::EndsWith(path, ".idx");
  if (file.ok() || !absl::IsNotFound(file.status()) || !names_one) return file;
  return absl::NotFoundError(
      absl::StrCat(file.status().message(), " (type megatron: the path goes without .bin and .idx)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const TokenSource& source, int64_t vocab_size) {
  FSDPD_CHECK(vocab_size > 0);
  if (source.type == TokenType::kMegatron) return OpenMegatron(source.path, vocab_size);
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> file, InputFile::Open(source.path));
  FSDPD_RETURN_IF_ERROR(RefuseNumpyHeader(*file, "tokens.tofile(PATH)"));
  const StoredId type = FlatIdOf(source.type);
  const int64_t width = BytesOf(type);
  const int64_t torn = file->size() % width;
  if (torn != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: size is not a multiple of the token size (got %d bytes, %d per token; the last "
                        "token starts at byte %d)",
                        source.path, file->size(), width, file->size() - torn));
  }
  const int64_t tokens = file->size() / width;
  return std::unique_ptr<TokenFile>(
      new TokenFile(std::move(file), type, tokens, vocab_size, "is data.tokens[].type right?"));
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::OpenMegatron(const std::string& path,
                                                                   int64_t vocab_size) {
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<InputFile> idx, OpenHalf(path, ".idx"));
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> bin, OpenHalf(path, ".bin"));
  FSDPD_ASSIGN_OR_RETURN(const MegatronIndex index, ReadMegatronIndex(*idx, *bin));
  return std::unique_ptr<TokenFile>(new TokenFile(std::move(bin), index.type, index.tokens, vocab_size,
                                                  "does the model have this data's tokenizer?"));
}

absl::Status TokenFile::OpenMask(const std::string& path) {
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> mask, InputFile::Open(path));
  FSDPD_RETURN_IF_ERROR(RefuseNumpyHeader(*mask, "mask.tofile(PATH)"));
  if (mask->size() != tokens_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: wrong mask size (got %d bytes, want one for each token of %s: %d)", path,
                        mask->size(), file_->path(), tokens_));
  }
  mask_ = std::move(mask);
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenFile::Traits() const {
  FSDPD_ASSIGN_OR_RETURN(const uint64_t hash, HashOfSample(*file_));
  return absl::StrFormat("%s = %d bytes, %d of them tokens of %d bytes, hash of a sample %016x", path(),
                         file_->size(), tokens_ * BytesOf(type_), BytesOf(type_), hash);
}

absl::StatusOr<std::string> TokenFile::MaskTraits() const {
  if (mask_ == nullptr) return std::string();
  FSDPD_ASSIGN_OR_RETURN(const uint64_t hash, HashOfSample(*mask_));
  return absl::StrFormat("%s = %d bytes, hash of a sample %016x", mask_->path(), mask_->size(), hash);
}

absl::Status TokenFile::Read(int64_t begin, int64_t count, int64_t* out) const {
  FSDPD_CHECK(begin >= 0 && count >= 0 && begin <= tokens_ - count);
  const int64_t width = BytesOf(type_);
  std::vector<char> bytes(count * width);
  FSDPD_RETURN_IF_ERROR(file_->Read(begin * width, count * width, bytes.data()));
  Widen(type_, bytes.data(), count, out);
  for (int64_t i = 0; i < count; ++i) {
    if (out[i] >= 0 && out[i] < vocab_size_) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: token %d at byte %d is %s (%s)", path(), out[i], (begin + i) * width,
                        out[i] < 0 ? "negative" : absl::StrCat("not below vocab_size ", vocab_size_), hint_));
  }
  return absl::OkStatus();
}

absl::Status TokenFile::ReadMask(int64_t begin, int64_t count, uint8_t* out) const {
  FSDPD_CHECK(begin >= 0 && count >= 0 && begin <= tokens_ - count);
  if (mask_ == nullptr) {
    std::fill_n(out, count, uint8_t{1});
    return absl::OkStatus();
  }
  FSDPD_RETURN_IF_ERROR(mask_->Read(begin, count, out));
  for (int64_t i = 0; i < count; ++i) {
    if (out[i] <= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: byte %d: invalid mask value (got %d, want 1 for a target and 0 otherwise)",
                        mask_->path(), begin + i, out[i]));
  }
  return absl::OkStatus();
}

}  // namespace fsdpd
