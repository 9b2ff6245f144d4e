// What one device computes per second, at shapes of a model's layer: products and attention in FLOPs (causal
// work counted half), and bytes read and written by element-wise operations.
//
// Each result is compared with one that is known before it is timed: INTERNAL, with the operation's name,
// when it is wrong.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "fsdp/plan/spec/spec.h"
#include "fsdp/profile/rank_bench.h"

namespace fsdpd {

struct ComputeSizes {
  int64_t rows = 0;  // [rows x inner] by [inner x columns].
  int64_t inner = 0;
  int64_t columns = 0;
  int64_t sequence = 0;  // Of one sample; attention is also measured to a quarter of it.
  int64_t heads = 0;
  int64_t head_size = 0;
  int64_t elements = 0;  // fp32, of each tensor that is copied and added.
};

struct ComputeRates {
  double fp32_matmul_flops = 0;
  double half_matmul_flops = 0;  // bf16.
  double fp8_matmul_flops = 0;   // 0 where the device has none.
  double attention_forward_flops = 0;
  double attention_backward_flops = 0;
  double attention_overhead_tokens = 0;  // DeviceProfile's, as the two above.
  double memory_bytes_per_second = 0;
};

// A product that can be run again and again, its tensors already on the device. Verified.
absl::StatusOr<Work> MakeProduct(RankBench* rank, const ComputeSizes& sizes, DType dtype);
// The same in FP8, its operands rounded already.
absl::StatusOr<Work> MakeFp8Product(RankBench* rank, const ComputeSizes& sizes);
double ProductFlops(const ComputeSizes& sizes);

// y = x, y += x, likewise; and the bytes that this reads and writes.
absl::StatusOr<Work> MakeTraffic(RankBench* rank, int64_t elements);
double TrafficBytes(int64_t elements);

// `attention`: the type that attention is measured in. Collective.
absl::StatusOr<ComputeRates> MeasureCompute(RankBench* rank, const ComputeSizes& sizes, DType attention);

}  // namespace fsdpd
