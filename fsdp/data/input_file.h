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
#include <memory>
#include <string>

namespace fsdpd {

class InputFile {
 public:
  static absl::StatusOr<std::unique_ptr<InputFile>> Open(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // In bytes, at Open.

  // Reads bytes [begin, begin + size) into `out`, all or an error. REQUIRES: they are within size().
  absl::Status Read(int64_t begin, int64_t size, void* out) const;

  // Fails if the file was written to or its path replaced since Open, so that several files that were opened
  // one after the other are known to be consistent. DATA_LOSS with the old and the new state.
  absl::Status CheckUnchanged() const;

 private:
  InputFile(const std::string& path, int fd) : path_(path), fd_(fd) {}

  const std::string path_;
  const int fd_;
  int64_t size_ = 0;
  struct stat opened_ = {};
};

}  // namespace fsdpd
