// Conversion of errno to a Status or a text: "open /x: No such file or directory".
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>
#include <errno.h>

#include <string>

namespace fsdpd {

// NOT_FOUND for ENOENT, UNAVAILABLE for all others: callers handle them in the same way.
absl::Status ErrnoStatus(absl::string_view what, int error = errno);

// Whether `status` is from ErrnoStatus() for a full disk, quota or file size limit: a user has to free space.
bool IsDiskFull(const absl::Status& status);

// Whether `status` is from ErrnoStatus() for too many open files, of the process or the system.
bool IsOutOfDescriptors(const absl::Status& status);

std::string ErrnoText(absl::string_view what, int error = errno);

}  // namespace fsdpd
