// What ranks compare before their first collective, as lines of text: every number of the spec that they must
// agree on, the layout, and the program with its buffers. The job's name, paths and memory budget are not in
// it: they may differ without harm. As text, so that ranks which differ can say in what.
#pragma once

#include "fsdp/plan/program/program.h"

namespace fsdpd {

std::vector<std::string> Fingerprint(const Spec& spec, const Layout& layout, const Program& program);

// Over the lines; the same on every machine.
uint64_t HashOf(const std::vector<std::string>& fingerprint);

// The first line that differs, as "this is 'x' on rank 0 and 'y' on rank 3" needs it; empty when none does.
struct Difference {
  std::string first;
  std::string second;
};
Difference FirstDifference(const std::vector<std::string>& first, const std::vector<std::string>& second);

}  // namespace fsdpd
