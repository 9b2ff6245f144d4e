#include "fsdp/torch/serial_copy.h"

#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstring>

#include "base/check.h"

namespace fsdpd {
namespace {

template <typename From, typename To>
at::Tensor CastAs(const at::Tensor& values, at::ScalarType type) {
  at::Tensor cast = at::empty(values.sizes(), at::TensorOptions().dtype(type));
  const From* const from = values.const_data_ptr<From>();
  To* const to = cast.mutable_data_ptr<To>();
  for (int64_t i = 0; i < values.numel(); ++i) to[i] = static_cast<To>(from[i]);
  return cast;
}

}  // namespace

at::Tensor SerialCast(const at::Tensor& values, at::ScalarType type) {
  const at::ScalarType from = values.scalar_type();
  FSDPD_CHECK(values.is_cpu() && values.is_contiguous());
  if (from == type) return values;
  if (from == at::kBFloat16 && type == at::kFloat) return CastAs<c10::BFloat16, float>(values, type);
  if (from == at::kHalf && type == at::kFloat) return CastAs<c10::Half, float>(values, type);
  FSDPD_CHECK(from == at::kFloat);
  if (type == at::kBFloat16) return CastAs<float, c10::BFloat16>(values, type);
  FSDPD_CHECK(type == at::kHalf);
  return CastAs<float, c10::Half>(values, type);
}

void SerialCopy(const at::Tensor& values, const at::Tensor& to) {
  FSDPD_CHECK(values.is_cpu() && values.is_contiguous() && to.is_contiguous() &&
              values.numel() == to.numel() && values.scalar_type() == to.scalar_type());
  if (!to.is_cpu()) {
    to.copy_(values);
  } else if (values.nbytes() > 0) {
    std::memcpy(to.mutable_data_ptr(), values.const_data_ptr(), values.nbytes());
  }
}

}  // namespace fsdpd
