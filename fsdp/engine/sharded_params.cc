#include "fsdp/engine/sharded_params.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/check.h"
#include "fsdp/memory/torch_status.h"

namespace fsdpd {
namespace {

void FillUnit(const UnitLayout& layout, int unit, int64_t shard, const InitialValues& initial,
              at::Tensor main) {
  at::Tensor value;
  int value_of = -1;
  for (const ShardPiece& piece : PiecesOf(layout, shard)) {
    if (piece.param != value_of) {
      value = at::Tensor();  // Freed first: one parameter at a time.
      value = initial(unit, piece.param).view({-1});
      value_of = piece.param;
      FSDPD_CHECK(value.numel() == layout.params[piece.param].elements);
    }
    main.narrow(0, piece.shard_begin, piece.elements)
        .copy_(value.narrow(0, piece.param_begin, piece.elements));
  }
}

}  // namespace

absl::StatusOr<ShardedParams> ShardedParams::Make(const Layout& layout, int64_t shard, at::Device device,
                                                  const InitialValues& initial) {
  ShardedParams params;
  const absl::Status status = CatchTorch([&] {
    const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat).device(device);
    for (size_t u = 0; u < layout.units.size(); ++u) {
      const int64_t elements = layout.units[u].shard_elements;
      UnitShard unit;
      unit.main = at::zeros({elements}, fp32);
      unit.exp_avg = at::zeros({elements}, fp32);
      unit.exp_avg_sq = at::zeros({elements}, fp32);
      FillUnit(layout.units[u], static_cast<int>(u), shard, initial, unit.main);
      params.units_.push_back(std::move(unit));
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return params;
}

void ShardedParams::CopyTo(const Layout& layout, int64_t shard, std::vector<float>* model) const {
  FSDPD_CHECK(static_cast<int64_t>(model->size()) == layout.elements());
  int64_t unit_begin = 0;
  for (size_t u = 0; u < layout.units.size(); ++u) {
    const UnitLayout& unit = layout.units[u];
    const at::Tensor main = units_[u].main.cpu();
    for (const ShardPiece& piece : PiecesOf(unit, shard)) {
      int64_t param_begin = unit_begin;
      for (int p = 0; p < piece.param; ++p) param_begin += unit.params[p].elements;
      std::copy_n(main.const_data_ptr<float>() + piece.shard_begin, piece.elements,
                  model->data() + param_begin + piece.param_begin);
    }
    unit_begin += unit.elements;
  }
}

}  // namespace fsdpd
