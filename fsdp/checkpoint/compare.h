// In what two checkpoints differ: names, shapes, types, and numbers. They may be of different formats.
//
// Tensors are read whole, two at a time on each thread. What is no tensor is compared by what is shown of it
// (DescribePickled): a number or a text, and of others the kind. Zeros of both signs are equal, and so are
// two numbers that are both NaN.
//
// Where the model is known, and the two have other names for it (param_match.h), its parameters are compared
// instead, by our names and in our shapes, as float32: how they lie, what they are called, and of which type
// they are is no difference then. What else there is, is listed.
//
// Errors are those of the readers, and CANCELLED.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/tensor_store.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct Difference {
  std::string name;
  // What each has: "float32 [2, 3]", or what a value is; empty: it has nothing of that name.
  std::string first, second;
  // Where both are tensors of one shape, of types that can be compared:
  std::optional<double> largest;  // Of the absolute differences; infinite where one is NaN.
  // That differ; -1: bytes do, of a type whose numbers are not compared.
  int64_t numbers = 0;
};

struct Comparison {
  std::vector<Difference> differences;  // By name; of a model's parameters in the model's order.
  int64_t equal = 0;                    // Tensors and values that do not differ.
  bool of_parameters = false;           // Of a model, and of nothing else.
  // Of parameters: tensors and values that are none of the model, which were not compared.
  std::vector<std::string> left_out_first, left_out_second;
  // Why parameters were not compared though the names are different: what the model lacks in one.
  std::string not_of_model;
};

// A directory, open.
struct StoreToCompare {
  std::string directory;
  std::shared_ptr<const TensorReader> reader;
};

absl::StatusOr<StoreToCompare> OpenToCompare(const std::string& directory);

absl::StatusOr<Comparison> CompareStores(const StoreToCompare& first, const StoreToCompare& second,
                                         const std::optional<ModelConfig>& model, int threads,
                                         const std::function<bool()>& stopped);

}  // namespace fsdpd
