#include "fsdp/plan/model/lora_facts.h"

#include <algorithm>
#include <utility>

namespace fsdpd {
namespace {

bool IsTarget(const LoraConfig& lora, const UnitFacts& unit, const ParamFacts& param) {
  if (!TakesAdapter(unit, param)) return false;
  const std::string name = FullName(unit, param);
  return lora.targets.empty() ||
         std::any_of(lora.targets.begin(), lora.targets.end(),
                     [&](const std::string& pattern) { return MatchesPattern(name, pattern); });
}

ParamFacts Adapter(std::string name, std::vector<int64_t> shape, TensorPartition partition, LoraPart part) {
  ParamFacts param{std::move(name), std::move(shape)};
  param.partition = partition;
  param.lora = part;
  return param;
}

}  // namespace

bool TakesAdapter(const UnitFacts& unit, const ParamFacts& param) {
  static constexpr const char* kNames[] = {
      "attention.wq", "attention.wk", "attention.wv", "attention.wo",  "attention.wq_a", "attention.wkv_a",
      "ffn.w1",       "ffn.w3",       "ffn.w2",       "ffn.shared.w1", "ffn.shared.w3",  "ffn.shared.w2"};
  return unit.kind == UnitKind::kBlock &&
         std::find(std::begin(kNames), std::end(kNames), param.name) != std::end(kNames);
}

std::string LoraAName(const std::string& matrix) { return matrix + ".lora_A"; }
std::string LoraBName(const std::string& matrix) { return matrix + ".lora_B"; }

void DescribeLora(const LoraConfig& lora, int64_t tokens, DType compute, ModelFacts* facts) {
  facts->choices = 0;
  for (UnitFacts& unit : facts->units) {
    std::vector<ParamFacts> adapters;
    int64_t elements = 0, inputs = 0, outputs = 0, of_gate_up = 0;
    for (ParamFacts& param : unit.params) {
      param.in_fp32 =
          param.fixed;  // A router's selection bias: rounding would change which experts it chooses.
      param.fixed = true;
      param.choices_begin = -1;
      if (!IsTarget(lora, unit, param)) continue;
      const bool rows = param.partition.is_partitioned() && param.partition.dim == 0;
      const bool columns = param.partition.is_partitioned() && !rows;
      const TensorPartition whole;
      adapters.push_back(Adapter(LoraAName(param.name), {lora.rank, param.shape[1]},
                                 columns ? param.partition : whole, LoraPart::kA));
      elements += adapters.back().elements();
      adapters.push_back(Adapter(LoraBName(param.name), {param.shape[0], lora.rank},
                                 rows ? param.partition : whole, LoraPart::kB));
      elements += adapters.back().elements();
      inputs += param.shape[1];
      outputs += param.shape[0];
      if (param.name == "ffn.w1" || param.name == "ffn.w3")
        of_gate_up += lora.rank * (param.shape[0] + param.shape[1]);
    }
    if (adapters.empty()) continue;
    unit.lora_scale = lora.scale();
    unit.params.insert(unit.params.end(), adapters.begin(), adapters.end());
    unit.forward_flops += 2 * static_cast<double>(tokens) * static_cast<double>(elements);
    unit.selective_flops += 2 * static_cast<double>(tokens) * static_cast<double>(of_gate_up);
    // Forward reads the input, and reads and writes the output. Backward reads the input for A's gradient and
    // for x A^T, the gradient of the output three times, and reads and writes the gradient of the input.
    const int64_t bytes = tokens * BytesOf(compute);
    unit.forward_bytes += bytes * (inputs + 2 * outputs);
    unit.backward_bytes += bytes * (4 * inputs + 3 * outputs);
    const int count = static_cast<int>(adapters.size()) / 2;
    unit.forward_kernels += 2 * count;
    unit.backward_kernels += 8 * count;
    // x A^T of one matrix, and its gradient.
    unit.workspace_bytes += 2 * tokens * lora.rank * BytesOf(compute);
  }
}

}  // namespace fsdpd
