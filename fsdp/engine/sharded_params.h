// What a rank owns of the model for the whole job: its shard of the main parameters, of the optimizer's
// moments and of the gradient, one flat fp32 tensor of each per unit. Padding is zero and stays zero.
//
// Initial values are made one parameter at a time, and only parameters of which this rank owns a piece: no
// rank ever holds the whole model. They depend on seed and names alone, so every world starts from the same
// model.
//
// Thread safety: none; the lanes order who touches what. Errors: RESOURCE_EXHAUSTED when the device is too
// small.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <functional>
#include <vector>

#include "fsdp/plan/layout.h"

namespace fsdpd {

struct UnitShard {
  at::Tensor main;        // [shard_elements] fp32, as are the others.
  at::Tensor exp_avg;     // AdamW's first moment.
  at::Tensor exp_avg_sq;  // AdamW's second moment.
  at::Tensor grad;        // Sum over the step's micro-batches and ranks. Undefined until the engine binds it.
};

// The whole parameter, flat or shaped, fp32 on the CPU.
using InitialValues = std::function<at::Tensor(int unit, int param)>;

class ShardedParams {
 public:
  // `shard`: which of layout.shards this rank owns.
  static absl::StatusOr<ShardedParams> Make(const Layout& layout, int64_t shard, at::Device device,
                                            const InitialValues& initial);

  UnitShard& unit(int index) { return units_[index]; }
  const UnitShard& unit(int index) const { return units_[index]; }
  int size() const { return static_cast<int>(units_.size()); }

  // Writes this rank's pieces into `model`: all parameters one after the other in layout order, fp32.
  void CopyTo(const Layout& layout, int64_t shard, std::vector<float>* model) const;

 private:
  std::vector<UnitShard> units_;
};

}  // namespace fsdpd
