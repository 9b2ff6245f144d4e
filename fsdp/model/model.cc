#include "fsdp/model/model.h"

#include "fsdp/model/autograd/gpt2.h"
#include "fsdp/model/native/native_llama.h"
#include "fsdp/model/package/package_model.h"
#include "fsdp/model/plugin.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {

std::vector<std::unique_ptr<Unit>> MakeUnits(const Spec& spec, const ModelFacts& facts, at::Device device) {
  if (const auto* gpt2 = std::get_if<Gpt2Config>(&spec.model)) return MakeGpt2(*gpt2, facts);
  return MakeNativeLlama(std::get<LlamaConfig>(spec.model), facts, spec.data.sequence_length, device,
                         spec.precision.compute);
}

absl::StatusOr<std::vector<std::unique_ptr<Unit>>> MakeModel(const Spec& spec, const ModelFacts& facts,
                                                             at::Device device,
                                                             const std::string& package_dir) {
  if (const auto* package = std::get_if<PackageConfig>(&spec.model)) {
    return MakePackageUnits(*package, package_dir, facts, device);
  }
  if (const auto* plugin = std::get_if<PluginConfig>(&spec.model)) {
    return MakePluginUnits(*plugin, facts, device);
  }
  std::vector<std::unique_ptr<Unit>> units;
  const absl::Status status = CatchTorch([&] {
    units = MakeUnits(spec, facts, device);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return units;
}

}  // namespace fsdpd
