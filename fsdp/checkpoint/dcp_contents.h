// What a folder with a checkpoint is found to hold: its index, and all that is wrong with it short of reading
// its numbers. For who restores a fault is a refusal (dcp_reader.h); for who looks (`fsdpctl ckpt`) it is
// what to show.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp_index.h"
#include "fsdp/checkpoint/dcp_sums.h"

namespace fsdpd {

struct DcpContents {
  DcpIndex index;
  std::vector<int64_t> file_bytes;  // Of each of index.files; -1: not there.
  std::optional<DcpSums> sums;      // Where we wrote it, and they are whole.
  std::vector<DcpFault> faults;
};

// An error where there is no `.metadata` (NOT_FOUND) or it cannot be read at all (DATA_LOSS).
absl::StatusOr<DcpContents> LoadContents(const std::string& folder);

}  // namespace fsdpd
