#include "fsdp/data/token_source.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "fsdp/data/permutation.h"

namespace fsdpd {
namespace {

int64_t BytesOf(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return 1;
    case TokenType::kU16:
      return 2;
    case TokenType::kU32:
      return 4;
  }
  return 1;
}

absl::Status ErrnoStatus(const std::string& path, const char* what) {
  const int error = errno;
  const std::string message = absl::StrCat(path, ": ", what, ": ", strerror(error));
  if (error == ENOENT) return absl::NotFoundError(message);
  if (error == EACCES) return absl::PermissionDeniedError(message);
  return absl::DataLossError(message);
}

template <typename T>
void Widen(const uint8_t* bytes, int64_t count, int64_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    T id;
    memcpy(&id, bytes + i * sizeof(T), sizeof(T));  // Files are little-endian, as the machines are.
    out[i] = id;
  }
}

class TokenFile : public TokenReader {
 public:
  TokenFile(int fd, const TokenSource& file, int64_t tokens, const TokenReaderOptions& options)
      : fd_(fd), path_(file.path), type_(file.type), tokens_(tokens), options_(options) {}
  ~TokenFile() override { close(fd_); }

  absl::Status Read(int64_t index, int64_t* out) const override {
    const int64_t windows = tokens_ / options_.window_tokens;
    const uint64_t epoch_seed = Mix(options_.seed, static_cast<uint64_t>(index / windows));
    const int64_t window = Permute(epoch_seed, index % windows, windows);
    const int64_t shift = static_cast<int64_t>(Mix(epoch_seed) % static_cast<uint64_t>(tokens_));
    const int64_t begin = (shift + window * options_.window_tokens) % tokens_;
    const int64_t before_end = std::min(options_.window_tokens, tokens_ - begin);
    FSDPD_RETURN_IF_ERROR(ReadRange(begin, before_end, out));
    return ReadRange(0, options_.window_tokens - before_end, out + before_end);
  }

 private:
  absl::Status ReadRange(int64_t begin, int64_t count, int64_t* out) const {
    const int64_t width = BytesOf(type_);
    std::vector<uint8_t> bytes(count * width);
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t got = pread(fd_, bytes.data() + done, bytes.size() - done, begin * width + done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0)
        return ErrnoStatus(path_, absl::StrFormat("read at byte %d", begin * width + done).c_str());
      if (got == 0) {
        return absl::DataLossError(
            absl::StrFormat("%s: ends at byte %d, but had %d bytes when the job started", path_,
                            begin * width + done, tokens_ * width));
      }
      done += got;
    }
    if (type_ == TokenType::kU8) Widen<uint8_t>(bytes.data(), count, out);
    if (type_ == TokenType::kU16) Widen<uint16_t>(bytes.data(), count, out);
    if (type_ == TokenType::kU32) Widen<uint32_t>(bytes.data(), count, out);
    return CheckRange(begin, count, out);
  }

  absl::Status CheckRange(int64_t begin, int64_t count, const int64_t* ids) const {
    for (int64_t i = 0; i < count; ++i) {
      if (ids[i] < options_.vocab_size) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: token %d at byte %d is not below vocab_size %d (is data.tokens[].type right?)",
                          path_, ids[i], (begin + i) * BytesOf(type_), options_.vocab_size));
    }
    return absl::OkStatus();
  }

  const int fd_;
  const std::string path_;
  const TokenType type_;
  const int64_t tokens_;
  const TokenReaderOptions options_;
};

class SyntheticTokens : public TokenReader {
 public:
  explicit SyntheticTokens(const TokenReaderOptions& options) : options_(options) {}

  absl::Status Read(int64_t index, int64_t* out) const override {
    const uint64_t window_seed = Mix(options_.seed, static_cast<uint64_t>(index));
    for (int64_t i = 0; i < options_.window_tokens; ++i) {
      out[i] = static_cast<int64_t>(Mix(window_seed, i) % static_cast<uint64_t>(options_.vocab_size));
    }
    return absl::OkStatus();
  }

 private:
  const TokenReaderOptions options_;
};

absl::Status CheckSize(const TokenSource& file, int64_t bytes, int64_t window_tokens) {
  const int64_t width = BytesOf(file.type);
  if (bytes % width != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes are not a whole number of %d-byte tokens (byte %d starts a torn one)",
                        file.path, bytes, width, bytes - bytes % width));
  }
  if (bytes / width < window_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: holds %d tokens (%d bytes), but one sample takes %d (sequence_length + 1)",
                        file.path, bytes / width, bytes, window_tokens));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenReader>> OpenTokenFile(const TokenSource& file,
                                                           const TokenReaderOptions& options) {
  FSDPD_CHECK(options.window_tokens > 1 && options.vocab_size > 0);
  const int fd = open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(file.path, "open");
  struct stat info;
  absl::Status status;
  if (fstat(fd, &info) != 0) {
    status = ErrnoStatus(file.path, "stat");
  } else if (!S_ISREG(info.st_mode)) {
    status = absl::InvalidArgumentError(absl::StrCat(file.path, ": is not a regular file"));
  } else {
    status = CheckSize(file, info.st_size, options.window_tokens);
  }
  if (!status.ok()) {
    close(fd);
    return status;
  }
  return std::make_unique<TokenFile>(fd, file, info.st_size / BytesOf(file.type), options);
}

std::unique_ptr<TokenReader> MakeSyntheticTokens(const TokenReaderOptions& options) {
  FSDPD_CHECK(options.window_tokens > 1 && options.vocab_size > 0);
  return std::make_unique<SyntheticTokens>(options);
}

}  // namespace fsdpd
