// A read-only data file with positional reads.
//
// Uses pread rather than mmap: if a file shrinks or a disk fails, the result is an error with its offset
// instead of a SIGBUS, for one system call per read.
//
// Const methods are thread-safe. Errors: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (not a regular file)
// and DATA_LOSS (shorter than at Open) name the file and, if applicable, the byte; they are the user's to fix
// and must not be retried. INTERNAL is a machine problem (too many open files, a failing disk or file
// server).
#pragma once

#include <absl/status/statusor.h>
#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/unique_fd.h"

namespace fsdpd {

class InputFile {
 public:
  static absl::StatusOr<std::unique_ptr<InputFile>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t size() const { return opened_.st_size; }  // In bytes, at Open.

  // Reads bytes [begin, begin + size) into `out`, all or an error. REQUIRES: they are within size().
  absl::Status Read(int64_t begin, int64_t size, void* out) const;
  absl::StatusOr<std::string> ReadAll() const;
  // Read(), for functions that read any source. The file must outlive it.
  std::function<absl::Status(int64_t begin, int64_t size, void* out)> Reader() const {
    return [this](int64_t begin, int64_t size, void* out) { return Read(begin, size, out); };
  }

  // Fails if the file was written to or its path replaced since Open, so that several files that were opened
  // one after the other are known to be consistent. DATA_LOSS with the old and the new state.
  absl::Status CheckUnchanged() const;

 private:
  InputFile(const std::string& path, UniqueFd fd, const struct stat& opened)
      : path_(path), fd_(std::move(fd)), opened_(opened) {}

  const std::string path_;
  const UniqueFd fd_;
  const struct stat opened_;
};

// The content of a file of at most `limit` bytes; DATA_LOSS if it has more.
absl::StatusOr<std::string> ReadInputFile(const std::string& path, int64_t limit);

}  // namespace fsdpd
