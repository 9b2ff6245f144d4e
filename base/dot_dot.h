// Whether a path goes up by a component `..`. Links make such a path lead to another place on each node, and
// folding it by its text may name another file than the kernel opens: it is refused, and never rewritten.
#pragma once

#include <absl/strings/string_view.h>

namespace fsdpd {

bool HasDotDot(absl::string_view path);

}  // namespace fsdpd
