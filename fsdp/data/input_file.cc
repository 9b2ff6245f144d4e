#include "fsdp/data/input_file.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"

namespace fsdpd {
namespace {

absl::Status ErrnoStatus(const std::string& path, const std::string& what) {
  const int error = errno;
  const std::string message = absl::StrCat(path, ": ", what, ": ", strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  // Errors of the path, which users may have mistyped.
  if (error == ENAMETOOLONG || error == ELOOP || error == EISDIR || error == ENXIO) {
    return absl::InvalidArgumentError(message);
  }
  return absl::InternalError(message);
}

std::string TimeText(const timespec& time) { return absl::StrFormat("%d.%09d", time.tv_sec, time.tv_nsec); }

std::string ContentText(const struct stat& info) {
  return absl::StrFormat("%d bytes, written to at %s", info.st_size, TimeText(info.st_mtim));
}

std::string InodeText(const struct stat& info) {
  return absl::StrFormat("inode %d of device %d", info.st_ino, info.st_dev);
}

}  // namespace

absl::StatusOr<std::unique_ptr<InputFile>> InputFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a named pipe would otherwise block until it has a writer.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(path, "open");
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(path, "stat");
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  return std::unique_ptr<InputFile>(new InputFile(path, std::move(fd), info));
}

absl::StatusOr<std::string> InputFile::ReadAll() const {
  std::string bytes(size(), '\0');
  FSDPD_RETURN_IF_ERROR(Read(0, size(), bytes.data()));
  return bytes;
}

absl::Status InputFile::Read(int64_t begin, int64_t size, void* out) const {
  FSDPD_CHECK(begin >= 0 && size >= 0 && begin <= this->size() - size);
  int64_t done = 0;
  while (done < size) {
    const ssize_t got = pread(fd_.get(), static_cast<char*>(out) + done, size - done, begin + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(path_, absl::StrFormat("read at byte %d", begin + done));
    if (got == 0) {
      struct stat now;
      const int64_t end =
          fstat(fd_.get(), &now) == 0 ? std::min<int64_t>(now.st_size, begin + done) : begin + done;
      return absl::DataLossError(
          absl::StrFormat("%s: file was truncated while it was read (ends at byte %d, had %d bytes)", path_,
                          end, this->size()));
    }
    done += got;
  }
  return absl::OkStatus();
}

absl::Status InputFile::CheckUnchanged() const {
  struct stat now;
  if (fstat(fd_.get(), &now) != 0) return ErrnoStatus(path_, "stat");
  // ctime is not compared: creating a hard link, as backups do, changes it.
  if (ContentText(now) != ContentText(opened_)) {
    return absl::DataLossError(absl::StrFormat("%s: file was modified while it was read (was %s; now %s)",
                                               path_, ContentText(opened_), ContentText(now)));
  }
  if (stat(path_.c_str(), &now) != 0) return ErrnoStatus(path_, "stat");
  if (InodeText(now) != InodeText(opened_)) {
    return absl::DataLossError(absl::StrFormat("%s: file was replaced while it was read (was %s; now %s)",
                                               path_, InodeText(opened_), InodeText(now)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadInputFile(const std::string& path, int64_t limit) {
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<InputFile> file, InputFile::Open(path));
  if (file->size() <= limit) return file->ReadAll();
  return absl::DataLossError(
      absl::StrCat(path, ": file is too large (got ", file->size(), " bytes, want at most ", limit, ")"));
}

}  // namespace fsdpd
