// Components of a path, by its text.
#pragma once

#include <absl/strings/string_view.h>

namespace fsdpd {

// With symlinks, such a path may lead to another place on each node, and normalizing its text may name
// another file than the kernel opens: callers reject it and never rewrite it.
bool HasDotDot(absl::string_view path);

// Whether `path` is `dir` or below it. REQUIRES: both are lexically normal; `dir` has no slash at its end.
bool IsBelow(absl::string_view path, absl::string_view dir);

}  // namespace fsdpd
