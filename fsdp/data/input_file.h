// A file of a job's data, read at byte offsets.
//
// Read with pread and not mapped: a file that shrinks or a disk that fails is then an error with its offset
// instead of a SIGBUS, at one system call a read.
//
// Thread safety: const methods may run on several threads. Errors: NOT_FOUND, PERMISSION_DENIED,
// INVALID_ARGUMENT (not a regular file) and DATA_LOSS (shorter than it was) name the file, and the byte where
// there is one; they are the user's to repair and are not worth a retry. INTERNAL is the machine's fault (too
// many open files, a disk or a file server that fails) and says nothing of the file.
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
  int64_t size() const { return size_; }  // In bytes, when it was opened.

  // Bytes [begin, begin + size) into `out`; all of them, or an error. REQUIRES: they lie within size().
  absl::Status Read(int64_t begin, int64_t size, void* out) const;

  // That nobody wrote to it since it was opened, and that its path still names it: what several opened one
  // after the other was one file. DATA_LOSS with what was and what is.
  absl::Status CheckUnchanged() const;

 private:
  InputFile(const std::string& path, int fd) : path_(path), fd_(fd) {}

  const std::string path_;
  const int fd_;
  int64_t size_ = 0;
  struct stat opened_ = {};
};

}  // namespace fsdpd
