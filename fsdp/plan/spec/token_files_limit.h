// Maximum number of files in each of data.tokens and data.validation, masks included. Each file takes an
// index in the sample block, and each file and each mask takes an open file descriptor on every rank.
#pragma once

#include <cstddef>

namespace fsdpd {

constexpr size_t kMaxTokenFiles = 1024;

}  // namespace fsdpd
