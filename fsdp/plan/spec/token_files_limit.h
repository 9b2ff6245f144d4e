// How many files each list of data.tokens and data.validation may name, masks among them: every file has a
// place in a block of samples, and as its mask a descriptor that each rank holds open.
#pragma once

#include <cstddef>

namespace fsdpd {

constexpr size_t kMaxTokenFiles = 1024;

}  // namespace fsdpd
