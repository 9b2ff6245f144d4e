// Writing files so that they survive: a new content appears under its name whole, and stays when the machine
// stops. Errors are ErrnoStatus's, with the path: a full disk is UNAVAILABLE.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>
#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdpd {

// All of `pieces`, one after the other, at byte `begin` of `fd`.
absl::Status WriteAt(int fd, const std::string& path, int64_t begin, std::vector<iovec> pieces);

// Takes the first `bytes` bytes of an empty file on the disk now, so that a full one is known before they are
// written; where the file system cannot, the file gets its length alone.
absl::Status ReserveBytes(int fd, const std::string& path, int64_t bytes);

// What ReplaceFile() writes to before the rename ends so; a process that is killed there leaves it.
inline constexpr char kTemporarySuffix[] = ".tmp";

// `directory`/`name` has this content, or what it had: written under another name, on disk, then renamed. The
// rename itself is on disk after SyncDirectory(). An error leaves nothing else behind.
absl::Status ReplaceFile(const std::string& directory, const std::string& name, absl::string_view content);

absl::Status SyncDirectory(const std::string& directory);

}  // namespace fsdpd
