// The types of numbers that checkpoints hold: PyTorch's, with the names that its formats have for them. What
// a plan computes with (fsdp/plan/spec/dtype.h) is a few of these; a checkpoint has step counters and masks
// as well.
#pragma once

#include <absl/strings/string_view.h>

#include <cstdint>

namespace fsdpd {

struct TensorType {
  absl::string_view name;     // torch's: "bfloat16".
  absl::string_view storage;  // Of the class in a torch.save file: "BFloat16Storage"; empty: none of its own.
  int64_t bytes = 0;          // Of one number.
  absl::string_view safetensors;  // In the head of such a file: "BF16"; empty: it has none of these.
};

// Null when there is none. There is one object for each type, so pointers can be compared.
const TensorType* FindTensorType(absl::string_view name);
const TensorType* FindTensorTypeOfStorage(absl::string_view storage);
const TensorType* FindTensorTypeOfSafetensors(absl::string_view name);

}  // namespace fsdpd
