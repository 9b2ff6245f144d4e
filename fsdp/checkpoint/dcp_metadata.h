// A checkpoint's `.metadata`: the pickle of torch.distributed.checkpoint's Metadata, to and from an index.
//
// Of what torch writes there, the index is read: tensors, values, where their records are. The rest (how
// names were nested, who saved it) is passed over. What we write has all that torch's readers ask for, also
// those that make one torch.save file of a checkpoint: a name is one key there and not nested.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "fsdp/checkpoint/dcp_index.h"

namespace fsdpd {

inline constexpr char kDcpMetadataName[] = ".metadata";

std::string MetadataOf(const DcpIndex& index);

// DATA_LOSS for what is no such pickle. What it says is not checked further: CheckIndex(). Tensors and values
// are in the order of their names.
absl::StatusOr<DcpIndex> ReadMetadata(std::string bytes);

}  // namespace fsdpd
