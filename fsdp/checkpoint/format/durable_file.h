// Durable file writes: a new content becomes visible atomically under its name, and survives a machine
// failure. Errors: ErrnoStatus's, with the path; a full disk is UNAVAILABLE.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>
#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdpd {

// Writes all of `pieces`, concatenated, at byte `begin` of `fd`.
absl::Status WriteAt(int fd, const std::string& path, int64_t begin, std::vector<iovec> pieces);

// Allocates the first `bytes` bytes of an empty file on disk, so that a full disk is detected before writing;
// on file systems without support for that, only sets the file's length.
absl::Status ReserveBytes(int fd, const std::string& path, int64_t bytes);

// Suffix of the temporary file of ReplaceFile(); a process that is killed before the rename leaves it behind.
inline constexpr char kTemporarySuffix[] = ".tmp";

// Atomically replaces `directory`/`name`: writes a temporary file, syncs it and renames it. The rename itself
// is durable after SyncDirectory(). An error leaves no temporary file.
absl::Status ReplaceFile(const std::string& directory, const std::string& name, absl::string_view content);

absl::Status SyncDirectory(const std::string& directory);

absl::Status RemoveFile(const std::string& path);  // OK if it does not exist.

}  // namespace fsdpd
