// What the system answered, as a Status or as words: "open /x: No such file or directory".
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>
#include <errno.h>

#include <string>

namespace fsdpd {

// NOT_FOUND for what is not there, UNAVAILABLE for every other number: what a caller may do about it is the
// same.
absl::Status ErrnoStatus(absl::string_view what, int error = errno);

// Whether it is ErrnoStatus()'s of a disk, a quota or a limit of one file that is full: somebody has to make
// room.
bool IsDiskFull(const absl::Status& status);

// Whether it is ErrnoStatus()'s of a process or a system that may open no more files.
bool IsOutOfDescriptors(const absl::Status& status);

std::string ErrnoText(absl::string_view what, int error = errno);

}  // namespace fsdpd
