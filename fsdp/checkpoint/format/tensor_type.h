// Element types of checkpoint tensors: PyTorch's types, with their names in each format. A superset of the
// types that a plan computes with (fsdp/plan/spec/dtype.h), since checkpoints also have step counters and
// masks.
#pragma once

#include <absl/strings/string_view.h>

#include <cstdint>

namespace fsdpd {

struct TensorType {
  absl::string_view name;         // Torch's: "bfloat16".
  absl::string_view storage;      // Class in torch.save files: "BFloat16Storage"; empty: none.
  int64_t bytes = 0;              // Per element.
  absl::string_view safetensors;  // In safetensors headers: "BF16"; empty: not supported there.
};

// Null if unknown. There is one object per type, so pointers can be compared.
const TensorType* FindTensorType(absl::string_view name);
const TensorType* FindTensorTypeOfStorage(absl::string_view storage);
const TensorType* FindTensorTypeOfSafetensors(absl::string_view name);

}  // namespace fsdpd
