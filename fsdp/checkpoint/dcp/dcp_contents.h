// Contents of a DCP checkpoint directory: its index, and all violations that can be found without reading
// tensor data. Restoring rejects a checkpoint with violations (dcp_reader.h); `fsdpctl ckpt` shows them.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp/dcp_index.h"
#include "fsdp/checkpoint/dcp/dcp_sums.h"

namespace fsdpd {

struct DcpContents {
  DcpIndex index;
  std::vector<int64_t> file_bytes;  // By index.files; -1: the file does not exist.
  std::optional<DcpSums> sums;      // If fsdpd wrote the checkpoint, and the checksum file is intact.
  DcpViolations violations;
};

// Whether the status describes a defect of the checkpoint, rather than a machine or permission problem that
// prevented reading it.
bool IsDefectOfCheckpoint(const absl::Status& status);

// The message of an InputFile error without the path, for a violation that names the file itself.
std::string WithoutPath(const absl::Status& status, const std::string& path);

// Errors: NOT_FOUND without `.metadata`; DATA_LOSS if it is unreadable; INTERNAL or PERMISSION_DENIED if a
// file could not be opened or read for reasons outside of the checkpoint.
absl::StatusOr<DcpContents> LoadContents(const std::string& directory);

}  // namespace fsdpd
