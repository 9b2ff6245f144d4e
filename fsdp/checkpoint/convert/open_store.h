// Detection of a checkpoint's format, by the files in its directory, for conversion or comparison:
// `.metadata` is DCP, with an additional `metadata.json` Megatron-Core, and safetensors are Hugging Face.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "fsdp/checkpoint/format/tensor_store.h"

namespace fsdpd {

enum class StoreFormat { kDcp, kHf, kTorchDist };

StoreFormat FormatOf(const std::string& directory);

// NOT_FOUND if it is none of them.
absl::StatusOr<std::unique_ptr<TensorReader>> OpenStore(const std::string& directory);

}  // namespace fsdpd
