#include "fsdp/model/native/native_unit.h"

#include <cmath>

#include "fsdp/model/unit/initial_values.h"

namespace fsdpd {

NativeUnit::NativeUnit(UnitFacts facts, at::ScalarType compute, int borrowed)
    : facts_(std::move(facts)), compute_(compute), borrowed_(borrowed) {}

void NativeUnit::Bind(const std::vector<BoundParam>& params, UnitContext* context) {
  FSDPD_CHECK(context != nullptr);
  context_ = context;
  FSDPD_CHECK(params_.empty() && params.size() == facts_.params.size() + borrowed_);
  for (size_t i = 0; i < facts_.params.size(); ++i) {
    FSDPD_CHECK(params[i].data.sizes() == at::IntArrayRef(facts_.params[i].shape));
  }
  for (size_t i = 0; i < params.size(); ++i) {
    const bool own = i < facts_.params.size(), fp8 = own && facts_.params[i].fp8;
    const bool wide = own && (facts_.params[i].is_selection_bias() || facts_.params[i].in_fp32);
    const at::ScalarType type = fp8 ? at::kFloat8_e4m3fn : wide ? at::kFloat : compute_;
    FSDPD_CHECK(params[i].data.scalar_type() == type && params[i].scales.defined() == fp8);
    params_.push_back(params[i].data);
    scales_.push_back(params[i].scales);
  }
}

at::Tensor NativeUnit::InitialValue(int index, uint64_t seed, int64_t begin, int64_t elements) const {
  if (const auto numbers = InitialNumbers(index, seed)) return DrawInitialValue(*numbers, begin, elements);
  const ParamFacts& param = facts_.params.at(index);
  const auto inputs = static_cast<double>(FullShape(param.shape, param.partition).back());
  const double bound = 1 / std::sqrt(inputs);
  const uint64_t key = NumbersOf(OwnerOf(facts_.name, param.owner), param.name, {}, seed).key;
  return DrawUniform(key, -bound, bound, begin, elements);
}

std::optional<kernels::NormalNumbers> NativeUnit::InitialNumbers(int index, uint64_t seed) const {
  const ParamFacts& param = facts_.params.at(index);
  if (param.lora == LoraPart::kA) return std::nullopt;  // Uniform, like a linear layer of PyTorch.
  const ParamInit init =
      param.lora == LoraPart::kB ? ParamInit{/*deviation=*/0, /*mean=*/0} : DefaultInit(param);
  return NumbersOf(OwnerOf(facts_.name, param.owner), param.name, init, seed);
}

int NativeUnit::IndexOf(const std::string& name) const {
  for (size_t i = 0; i < facts_.params.size(); ++i) {
    if (facts_.params[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

at::Tensor NativeUnit::param(int index) const { return index < 0 ? at::Tensor() : params_.at(index); }

void NativeUnit::CheckGrads(const ParamGrads& grads) const {
  FSDPD_CHECK(!params_.empty() && grads.into.size() == params_.size());
}

}  // namespace fsdpd
