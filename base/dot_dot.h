// Detection of `..` components in a path. With symlinks, such a path may lead to another place on each node,
// and normalizing its text may name another file than the kernel opens: callers reject it and never rewrite
// it.
#pragma once

#include <absl/strings/string_view.h>

namespace fsdpd {

bool HasDotDot(absl::string_view path);

}  // namespace fsdpd
