#include "fsdp/checkpoint/format/durable_file.h"

#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/unique_fd.h"

namespace fsdpd {

absl::Status WriteAt(int fd, const std::string& path, int64_t begin, std::vector<iovec> pieces) {
  size_t first = 0;
  while (first < pieces.size()) {
    if (pieces[first].iov_len == 0) {
      ++first;
      continue;
    }
    const ssize_t wrote =
        pwritev(fd, &pieces[first], static_cast<int>(std::min<size_t>(pieces.size() - first, 64)), begin);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return ErrnoStatus(absl::StrCat("write ", path, " at byte ", begin));
    begin += wrote;
    for (auto left = static_cast<size_t>(wrote); left > 0;) {
      const size_t of_this = std::min(left, pieces[first].iov_len);
      pieces[first].iov_base = static_cast<char*>(pieces[first].iov_base) + of_this;
      pieces[first].iov_len -= of_this;
      left -= of_this;
      if (pieces[first].iov_len == 0) ++first;
    }
  }
  return absl::OkStatus();
}

absl::Status ReserveBytes(int fd, const std::string& path, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  int result = 0;
  do {
    result = fallocate(fd, 0, 0, bytes);
  } while (result != 0 && errno == EINTR);
  // Without support by the file system, a full disk is detected only when writing.
  if (result != 0 && errno == EOPNOTSUPP) result = ftruncate(fd, bytes);
  return result == 0 ? absl::OkStatus() : ErrnoStatus(absl::StrCat("reserve ", bytes, " bytes of ", path));
}

absl::Status ReplaceFile(const std::string& directory, const std::string& name, absl::string_view content) {
  const std::string path = absl::StrCat(directory, "/", name),
                    temporary = absl::StrCat(path, kTemporarySuffix);
  const UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd.valid()) return ErrnoStatus(absl::StrCat("open ", temporary));
  absl::Cleanup remove_it = [&temporary] { unlink(temporary.c_str()); };
  FSDPD_RETURN_IF_ERROR(
      WriteAt(fd.get(), temporary, 0, {{const_cast<char*>(content.data()), content.size()}}));
  if (fsync(fd.get()) != 0) return ErrnoStatus(absl::StrCat("fsync ", temporary));
  if (rename(temporary.c_str(), path.c_str()) != 0) return ErrnoStatus(absl::StrCat("rename ", temporary));
  std::move(remove_it).Cancel();
  return absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& directory) {
  const UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(absl::StrCat("open ", directory));
  return fsync(fd.get()) == 0 ? absl::OkStatus() : ErrnoStatus(absl::StrCat("fsync ", directory));
}

absl::Status RemoveFile(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoStatus(absl::StrCat("remove ", path));
}

}  // namespace fsdpd
