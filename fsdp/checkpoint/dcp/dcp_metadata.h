// Reader and writer of a checkpoint's `.metadata`, the pickled Metadata object of
// torch.distributed.checkpoint.
//
// Reading extracts the index: tensors, values and the positions of their records. The rest (nesting of names,
// origin of the save) is ignored. Writing produces everything that torch's readers need, including the tool
// that converts a checkpoint to a single torch.save file; names are flat keys.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "fsdp/checkpoint/dcp/dcp_index.h"

namespace fsdpd {

inline constexpr char kDcpMetadataName[] = ".metadata";

std::string MetadataOf(const DcpIndex& index);

// DATA_LOSS if it is not such a pickle. Contents are not validated further: see CheckIndex(). Tensors and
// values are sorted by name.
absl::StatusOr<DcpIndex> ReadMetadata(std::string bytes);

}  // namespace fsdpd
