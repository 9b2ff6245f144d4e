#include "fsdp/model/package/package_values.h"

#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "fsdp/model/unit/initial_values.h"

namespace fsdpd {
namespace {

constexpr int64_t kBytes = sizeof(float);

// Redraws with other keys; after that many, clamps. At 2 standard deviations the chance is 1e-21.
constexpr int kDraws = 16;

float TruncatedAt(const kernels::NormalNumbers& standard, float bound, uint64_t i) {
  kernels::NormalNumbers numbers = standard;
  float value = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    value = kernels::NumberAt(numbers, i);
    if (std::fabs(value) <= bound) return value;
    numbers.key += 0x9e3779b97f4a7c15;
  }
  return std::fmax(-bound, std::fmin(value, bound));
}

void ReadInto(const std::string& path, int64_t begin, int64_t elements, float* into) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  TORCH_CHECK(file >= 0, path, ": ", std::strerror(errno));
  int64_t done = 0;
  while (done < elements * kBytes) {
    const ssize_t got = pread(file, reinterpret_cast<char*>(into) + done,
                              static_cast<size_t>(elements * kBytes - done), begin * kBytes + done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += got;
  }
  const int error = errno;
  close(file);
  TORCH_CHECK(done == elements * kBytes, path, ": cannot be read: ", std::strerror(error));
}

}  // namespace

absl::StatusOr<PackageValues> PackageValues::Make(const v1::PackageUnit::InitialValue& recipe,
                                                  const std::string& directory, int64_t elements) {
  PackageValues values;
  values.recipe_ = recipe;
  if (recipe.kind_case() == v1::PackageUnit::InitialValue::KIND_NOT_SET)
    return absl::FailedPreconditionError("unknown kind of initial value");
  if (!recipe.has_file()) return values;
  values.path_ = absl::StrCat(directory, "/", recipe.file());
  std::error_code error;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(values.path_, error));
  if (error) return absl::FailedPreconditionError(absl::StrCat(values.path_, ": ", error.message()));
  if (bytes != elements * kBytes)
    return absl::FailedPreconditionError(
        absl::StrCat(values.path_, ": wrong size (got ", bytes, " bytes, want ", elements * kBytes, ")"));
  return values;
}

std::optional<kernels::NormalNumbers> PackageValues::Numbers(uint64_t key) const {
  if (recipe_.has_constant())
    return kernels::NormalNumbers{key, /*deviation=*/0, static_cast<float>(recipe_.constant())};
  const v1::PackageUnit::Normal& normal = recipe_.normal();
  if (!recipe_.has_normal() || normal.truncated_at() > 0) return std::nullopt;
  return kernels::NormalNumbers{key, static_cast<float>(normal.std()), static_cast<float>(normal.mean())};
}

at::Tensor PackageValues::Draw(uint64_t key, int64_t begin, int64_t elements) const {
  if (const auto numbers = Numbers(key)) return DrawInitialValue(*numbers, begin, elements);
  if (recipe_.has_uniform())
    return DrawUniform(key, recipe_.uniform().low(), recipe_.uniform().high(), begin, elements);
  at::Tensor values = at::empty({elements}, at::kFloat);
  auto* const out = values.mutable_data_ptr<float>();
  if (recipe_.has_file()) {
    ReadInto(path_, begin, elements, out);
  } else {
    const v1::PackageUnit::Normal& normal = recipe_.normal();
    const kernels::NormalNumbers standard{key, /*deviation=*/1, /*mean=*/0};
    for (int64_t i = 0; i < elements; ++i)
      out[i] = static_cast<float>(
          normal.mean() +
          normal.std() * TruncatedAt(standard, static_cast<float>(normal.truncated_at()), begin + i));
  }
  return values;
}

}  // namespace fsdpd
