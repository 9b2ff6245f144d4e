// Merge of LoRA adapters into the weights of their base model: W + scale B A, in fp32.
//
// Holds all adapters in memory, as float32. Const methods are thread-safe. Errors: those of the reader;
// DATA_LOSS if the tensors are not adapters of the model.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/names/base_label.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// FAILED_PRECONDITION if `base` has other weights than those that `want` identifies. Reads all of them on
// `threads` threads. An empty label, as of adapters of PEFT, accepts every base.
absl::Status CheckBase(const BaseLabel& want, const std::string& base, const ModelConfig& model, int threads,
                       const std::function<bool()>& stopped);

class LoraMerge {
 public:
  // `directory`: a native checkpoint of a LoRA job, or adapters of PEFT. Targets are the matrices that have
  // adapters there. REQUIRES: `model` is of the Llama family.
  static absl::StatusOr<std::unique_ptr<LoraMerge>> Open(const std::string& directory,
                                                         const ModelConfig& model, const LoraConfig& lora);

  // `ours`: our name of a matrix, "layer.0.attention.wq".
  bool Has(const std::string& ours) const { return adapters_.count(ours) > 0; }
  // `weights`: the whole matrix, row-major, in our layout. REQUIRES: Has(ours).
  void AddTo(const std::string& ours, float* weights) const;

  // Checksum of everything that determines the result.
  uint32_t crc32() const { return crc32_; }

 private:
  struct Adapter {
    int64_t outputs = 0, inputs = 0;
    std::vector<float> a, b;  // [rank x inputs], [outputs x rank]
  };

  explicit LoraMerge(const LoraConfig& lora) : rank_(lora.rank), scale_(static_cast<float>(lora.scale())) {}

  const int64_t rank_;
  const float scale_;
  uint32_t crc32_ = 0;
  std::map<std::string, Adapter> adapters_;  // By our name of the matrix.
};

}  // namespace fsdpd
