// What Megatron-Core keeps beside the tensors of a checkpoint of its own (torch_dist): metadata.json says
// which format it is, common.pt has what every rank would have written alike. Both in a folder that DCP
// reads.
//
// Errors: ErrnoStatus's.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>

namespace fsdpd {

inline constexpr char kMegatronMetadataName[] = "metadata.json";
inline constexpr char kMegatronCommonName[] = "common.pt";

// Of a checkpoint whose layers lie along a leading axis, written after step `iteration`: parameters alone.
absl::Status WriteMegatronFiles(const std::string& folder, int64_t iteration);

}  // namespace fsdpd
