#include "fsdp/model/native/native_llama.h"

#include "fsdp/model/native/native_block.h"
#include "fsdp/model/native/native_embedding.h"
#include "fsdp/model/native/native_head.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {

std::vector<std::unique_ptr<Unit>> MakeNativeLlama(const LlamaConfig& config, const ModelFacts& facts,
                                                   int64_t sequence_length, at::Device device,
                                                   DType compute) {
  const Rotary rotary = MakeRotary(config, sequence_length, device);
  const at::ScalarType type = ScalarTypeOf(compute);
  std::vector<std::unique_ptr<Unit>> units;
  for (const UnitFacts& unit : facts.units) {
    switch (unit.kind) {
      case UnitKind::kEmbedding:
        units.push_back(std::make_unique<NativeEmbedding>(unit, type));
        break;
      case UnitKind::kBlock:
        units.push_back(std::make_unique<NativeBlock>(unit, type, config, rotary));
        break;
      case UnitKind::kHead:
        units.push_back(std::make_unique<NativeHead>(unit, type, config.norm_epsilon));
        break;
    }
  }
  return units;
}

}  // namespace fsdpd
