// Opens what can be converted or compared, by what lies in the directory: `.metadata` is DCP's, with
// `metadata.json` beside it Megatron-Core's, and safetensors are Hugging Face's.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "fsdp/checkpoint/tensor_store.h"

namespace fsdpd {

enum class StoreFormat { kDcp, kHf, kTorchDist };

StoreFormat FormatOf(const std::string& directory);

// NOT_FOUND where there is neither.
absl::StatusOr<std::unique_ptr<TensorReader>> OpenStore(const std::string& directory);

}  // namespace fsdpd
