#include "fsdp/model/model.h"

#include "fsdp/model/gpt2.h"
#include "fsdp/model/native_llama.h"

namespace fsdpd {

std::vector<std::unique_ptr<Unit>> MakeUnits(const Spec& spec, const ModelFacts& facts, at::Device device) {
  if (const auto* gpt2 = std::get_if<Gpt2Config>(&spec.model)) return MakeGpt2(*gpt2, facts);
  return MakeNativeLlama(std::get<LlamaConfig>(spec.model), facts, spec.data.sequence_length, device,
                         spec.compute);
}

}  // namespace fsdpd
