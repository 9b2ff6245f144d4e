// TensorWriter (tensor_store.h) for DCP checkpoints; the reader is DcpReader.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp/dcp_file.h"
#include "fsdp/checkpoint/format/tensor_store.h"

namespace fsdpd {

// A writer for files of a single rank, `file_bytes` each, the first one also with `values`. Write()'s index
// counts pieces. `whole`: complete files of an earlier writer for the same pieces and values. REQUIRES: the
// directory exists and does not contain a checkpoint.
absl::StatusOr<std::unique_ptr<TensorWriter>> MakeDcpWriter(const std::string& directory,
                                                            const std::vector<DcpPiece>& pieces,
                                                            int64_t file_bytes,
                                                            const std::vector<DcpSmall>& values = {},
                                                            const std::vector<CompleteFile>& whole = {});

}  // namespace fsdpd
