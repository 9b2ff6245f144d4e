// In what two checkpoints differ: names, shapes, types, and numbers. They may be of different formats.
//
// Tensors are read whole, two at a time on each thread. What is no tensor is compared by what is shown of it
// (DescribePickled): a number or a text, and of others the kind. Zeros of both signs are equal, and so are
// two numbers that are both NaN.
//
// Errors are those of the readers, and CANCELLED.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

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
  std::vector<Difference> differences;  // By name.
  int64_t equal = 0;                    // Tensors and values that do not differ.
};

absl::StatusOr<Comparison> CompareStores(const std::string& first, const std::string& second, int threads,
                                         const std::function<bool()>& stopped);

}  // namespace fsdpd
