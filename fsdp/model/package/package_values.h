// Initial values of an exported parameter: drawn as its module drew them, or read from the package.
//
// Drawn values are a function of the seed, the parameter's name and the element's index (initial_values.h).
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "fsdp/kernels/normal_numbers.h"
#include "proto/fsdpd/v1/package.pb.h"

namespace fsdpd {

class PackageValues {
 public:
  // `directory`: of the unpacked package. FAILED_PRECONDITION if the recipe is unset, or the file does not
  // have `elements` values.
  static absl::StatusOr<PackageValues> Make(const v1::PackageUnit::InitialValue& recipe,
                                            const std::string& directory, int64_t elements);

  // Values [begin, begin + elements) as flat fp32. `key`: hash of the seed and the name. Throws c10::Error if
  // the file cannot be read.
  at::Tensor Draw(uint64_t key, int64_t begin, int64_t elements) const;

  // The same in a form that a device can generate, if there is one.
  std::optional<kernels::NormalNumbers> Numbers(uint64_t key) const;

 private:
  v1::PackageUnit::InitialValue recipe_;
  std::string path_;
};

}  // namespace fsdpd
