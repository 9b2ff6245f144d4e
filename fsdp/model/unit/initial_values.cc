#include "fsdp/model/unit/initial_values.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <xxhash.h>

#include "base/check.h"
#include "fsdp/model/unit/draw_normals.h"

namespace fsdpd {
namespace {

bool IsBias(const std::string& name) {
  constexpr char kBias[] = "bias";
  constexpr size_t kLength = sizeof(kBias) - 1;
  if (name.size() >= kLength && name.compare(name.size() - kLength, kLength, kBias) == 0) return true;
  const size_t dot = name.rfind('.');
  return dot != std::string::npos && name[dot + 1] == 'b';
}

}  // namespace

ParamInit DefaultInit(const ParamFacts& param) {
  if (param.shape.size() > 1) return {param.deviation, 0};
  return {/*deviation=*/0, /*mean=*/IsBias(param.name) ? 0.0 : 1.0};
}

std::vector<ParamInit> DefaultInits(const UnitFacts& unit) {
  std::vector<ParamInit> inits;
  for (const ParamFacts& param : unit.params) inits.push_back(DefaultInit(param));
  return inits;
}

kernels::NormalNumbers NumbersOf(const std::string& unit, const std::string& param, const ParamInit& init,
                                 uint64_t seed) {
  const std::string name = unit + "/" + param;
  return {XXH64(name.data(), name.size(), seed), static_cast<float>(init.deviation),
          static_cast<float>(init.mean)};
}

at::Tensor DrawUniform(uint64_t key, double low, double high, int64_t begin, int64_t elements) {
  at::Tensor values = at::empty({elements}, at::kFloat);
  auto* const out = values.mutable_data_ptr<float>();
  for (int64_t e = 0; e < elements; ++e) {
    const auto i = static_cast<uint64_t>(begin + e);
    const float unit = static_cast<float>(kernels::PhiloxAt(key, i / 4).at[i % 4] >> 8) * 0x1p-24f;
    out[e] = static_cast<float>(low + (high - low) * unit);
  }
  return values;
}

at::Tensor DrawInitialValue(const kernels::NormalNumbers& numbers, int64_t begin, int64_t elements) {
  FSDPD_CHECK(begin >= 0 && elements >= 0);
  if (numbers.deviation == 0) return at::full({elements}, numbers.mean, at::kFloat);
  static const VectorSet set = WidestVectorSet();
  at::Tensor values = at::empty({elements}, at::kFloat);
  DrawNormals(set, numbers, begin, elements, values.mutable_data_ptr<float>());
  return values;
}

}  // namespace fsdpd
