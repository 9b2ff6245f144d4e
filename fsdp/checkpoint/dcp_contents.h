// What a directory with a checkpoint is found to hold: its index, and all that is wrong with it short of
// reading its numbers. For who restores a fault is a refusal (dcp_reader.h); for who looks (`fsdpctl ckpt`)
// it is what to show.
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
  DcpFaults faults;
};

// Whether it tells of a checkpoint what is wrong with it; or else of a machine or a right that it could not
// be read, which is no fault of the checkpoint's.
bool IsFaultOfFile(const absl::Status& status);

// What an InputFile says, for a fault that names the file already.
std::string WithoutPath(const absl::Status& status, const std::string& path);

// An error where there is no `.metadata` (NOT_FOUND), it cannot be read at all (DATA_LOSS), or a file could
// not be opened or read for a reason that is none of the checkpoint's (INTERNAL, PERMISSION_DENIED).
absl::StatusOr<DcpContents> LoadContents(const std::string& directory);

}  // namespace fsdpd
