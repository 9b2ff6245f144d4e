// Fingerprint of a job: the text lines that ranks compare before their first collective. Covers every number
// of the spec that ranks must agree on, the layout, and the program with its buffers. Excludes the job's
// name, paths and memory budget, which may differ between ranks. Text rather than a hash, so that a mismatch
// can be reported.
#pragma once

#include "fsdp/plan/program/program.h"

namespace fsdpd {

std::vector<std::string> Fingerprint(const Spec& spec, const Layout& layout, const Program& program);

// Hash of the lines, as 16 hexadecimal digits; platform-independent.
std::string HashOf(const std::vector<std::string>& fingerprint);

// The first line that differs, for a message such as "this is 'x' on rank 0 and 'y' on rank 3"; empty if all
// are equal.
struct LineDifference {
  std::string first;
  std::string second;
};
LineDifference FirstDifference(const std::vector<std::string>& first, const std::vector<std::string>& second);

}  // namespace fsdpd
