// What rounding to FP8 (native_fp8.h) does to numbers, by what they are: the least and the largest scale of
// all rows, so that no outlier is missed; of one row in kernels::kFp8Watched how many numbers there are and
// how many become zero. No number is ever cut off at 448, as scales are those of the numbers. What is rounded
// along columns is not watched: they are the same numbers.
//
// Thread safety: safe on the CPU; on CUDA kernels add atomically, and nothing may be rounded between Told and
// Reset.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/mutex.h"
#include "fsdp/kernels/fp8.h"

namespace fsdpd {

enum class Fp8Class { kWeights, kInputs, kGradients };
constexpr int kFp8Classes = 3;
constexpr int kFp8Told = 4 * kFp8Classes;

class Fp8Watch {
 public:
  explicit Fp8Watch(at::Device device);

  void Reset();

  // [kFp8Told] fp32, on the device: by class numbers, those that became zero, the least scale and the
  // largest; infinity and 0 where nothing was seen.
  at::Tensor Told();

  // While it exists, `watch` sees what this thread rounds; null: nobody does.
  class Scope {
   public:
    explicit Scope(Fp8Watch* watch);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Fp8Watch* const before_;
  };

  // Where kernels add what they see; null: nowhere.
  static kernels::Fp8Seen* PlaceOf(Fp8Class kind);

  // The host's: `x` in fp32 became `values`, by factors 1 / `scales`.
  static void Add(Fp8Class kind, const at::Tensor& x, const at::Tensor& values, const at::Tensor& scales);

 private:
  Mutex mutex_;
  at::Tensor seen_;        // [kFp8Classes x 4] int64, as kernels::Fp8Seen has them.
  const at::Tensor none_;  // The same before anything was seen.
};

}  // namespace fsdpd
