// Comparison of two checkpoints, possibly of different formats: names, shapes, types and numbers.
//
// Tensors are read completely, two at a time per thread. Entries that are not tensors are compared by their
// description (DescribePickled): the value of a number or text, the kind of anything else. 0 and -0 are
// equal, and so are two NaNs.
//
// If the model is known and the two checkpoints name its parameters differently (param_match.h), the
// parameters are compared instead, under our names, in our shapes and as float32: differences in layout, name
// and type do not count then. All other entries are listed. The same applies to LoRA adapters of PEFT and of
// a job.
//
// Errors: those of the readers, and CANCELLED.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/format/tensor_store.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct TensorDifference {
  std::string name;
  // Description on each side: "float32 [2, 3]", or a value; empty: absent.
  std::string first, second;
  // Set if both are tensors of one shape, with types that can be compared:
  std::optional<double> largest;  // Largest absolute difference; infinite if one is NaN.
  // Number of differing elements; -1: bytes differ, in a type whose numbers are not compared.
  int64_t numbers = 0;
};

struct Comparison {
  std::vector<TensorDifference> differences;  // By name; parameters in the order of the model.
  int64_t equal = 0;                          // Tensors and values that are equal.
  bool of_parameters = false;                 // Only the parameters of the model were compared.
  // If of_parameters: tensors and values outside of the model, which were not compared.
  std::vector<std::string> left_out_first, left_out_second;
  // Why parameters were not compared despite different names: what one side lacks of the model.
  std::string not_of_model;
};

// An opened directory.
struct StoreToCompare {
  std::string directory;
  std::shared_ptr<const TensorReader> reader;
};

absl::StatusOr<StoreToCompare> OpenToCompare(const std::string& directory);

absl::StatusOr<Comparison> CompareStores(const StoreToCompare& first, const StoreToCompare& second,
                                         const std::optional<ModelConfig>& model, int threads,
                                         const std::function<bool()>& stopped);

}  // namespace fsdpd
