// How people write the path of a directory, and what it is.
//
// Pure functions.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

// "/runs/7" of "/runs/7/": names are appended to it, and paths compared. "/" stays.
std::string WithoutSlash(absl::string_view path);

// The last word of it: "iter_0000200".
std::string DirectoryName(absl::string_view path);

}  // namespace fsdpd
