// FP8 quantization statistics (native_fp8.h) by class of tensor: the smallest and largest scale over all
// rows, so that no outlier is missed; and, for one row in kernels::kFp8Watched, how many elements there are
// and how many are flushed to zero. Elements never saturate at 448, since scales are computed from the
// elements. Column-wise quantization is not recorded: it sees the same elements.
//
// Thread safety: thread-safe on the CPU. On CUDA, kernels add atomically, and nothing may be quantized
// between Told and Reset.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/mutex.h"
#include "fsdp/kernels/fp8.h"

namespace fsdpd {

enum class Fp8Class { kWeights, kInputs, kGradients };
constexpr int kFp8Classes = 3;
constexpr int kFp8Statistics = 4 * kFp8Classes;

class Fp8Watch {
 public:
  explicit Fp8Watch(at::Device device);

  void Reset();

  // [kFp8Statistics] fp32, on the device. Per class: elements, flushed elements, smallest scale, largest
  // scale; infinity and 0 if nothing was recorded.
  at::Tensor Read();

  // While it exists, `watch` records what this thread quantizes; null: nothing is recorded.
  class Scope {
   public:
    explicit Scope(Fp8Watch* watch);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Fp8Watch* const before_;
  };

  // Where kernels accumulate their statistics; null: recording is off.
  static kernels::Fp8Statistics* PlaceOf(Fp8Class kind);

  // For the CPU: records that `x` (fp32) was quantized to `values` by factors 1 / `scales`.
  static void Add(Fp8Class kind, const at::Tensor& x, const at::Tensor& values, const at::Tensor& scales);

 private:
  Mutex mutex_;
  at::Tensor seen_;        // [kFp8Classes x 4] int64, in the layout of kernels::Fp8Statistics.
  const at::Tensor none_;  // The initial value of seen_.
};

}  // namespace fsdpd
