// Normalization of user-supplied directory paths.
//
// Pure functions.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

namespace fsdpd {

// "/runs/7" for "/runs/7/", so that names can be appended and paths compared. "/" is unchanged.
std::string WithoutSlash(absl::string_view path);

// The last component: "iter_0000200".
std::string DirectoryName(absl::string_view path);

}  // namespace fsdpd
