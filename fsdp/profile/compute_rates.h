// Compute throughput of one device at the shapes of a model's layer: products and attention in FLOP/s (causal
// attention counts half), and memory bandwidth of element-wise operations.
//
// Each operation is verified against a known result before it is timed: INTERNAL, with the operation's name,
// if it is wrong.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "fsdp/plan/predict/device_profile.h"
#include "fsdp/profile/rank_bench.h"

namespace fsdpd {

struct ComputeSizes {
  int64_t rows = 0;  // Products are [rows x inner] by [inner x columns].
  int64_t inner = 0;
  int64_t columns = 0;
  int64_t sequence = 0;  // Tokens per sample; attention is also measured at a quarter of it.
  int64_t heads = 0;
  int64_t head_size = 0;
  int64_t elements = 0;  // fp32 elements of each tensor that is copied and added.
};

// Makes a repeatable product whose tensors are already on the device. Verified.
absl::StatusOr<Work> MakeProduct(RankBench* rank, const ComputeSizes& sizes, DType dtype);
// The same in FP8, with operands already quantized.
absl::StatusOr<Work> MakeFp8Product(RankBench* rank, const ComputeSizes& sizes);
double ProductFlops(const ComputeSizes& sizes);

// y = x, y += x, likewise; and the number of bytes read and written.
absl::StatusOr<Work> MakeTraffic(RankBench* rank, int64_t elements);
double TrafficBytes(int64_t elements);

// Sets the rates of products (FP8: 0 if the device does not support it), attention and memory. `attention`:
// the type for the attention measurement. Collective.
absl::Status MeasureCompute(RankBench* rank, const ComputeSizes& sizes, DType attention,
                            DeviceProfile* rates);

}  // namespace fsdpd
