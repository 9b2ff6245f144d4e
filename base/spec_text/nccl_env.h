// Environment variables that NCCL 2.28.9 reads: the names in its library, without those that appear in its
// log messages only. NCCL silently ignores unknown names.
#pragma once

#include <absl/strings/string_view.h>
#include <absl/types/span.h>

namespace fsdpd {

absl::Span<const absl::string_view> NcclEnvNames();  // Sorted.

}  // namespace fsdpd
