#include "fsdp/plan/model/lora_facts.h"

#include <absl/strings/match.h>

#include <algorithm>
#include <map>
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

// The adapters of matrices that read the same input.
struct NarrowSizes {
  int64_t width = 0;  // Of the input.
  int64_t ranks = 0;  // The sum.
};

// Same text for matrices that read the same input.
std::string InputOf(const std::string& matrix) {
  const bool of_output = absl::EndsWith(matrix, ".wo") || absl::EndsWith(matrix, ".w2");
  return of_output ? matrix : matrix.substr(0, matrix.rfind('.'));
}

// x A^T. Recompute repeats it with the outputs of the matrix, except for those of the last one, w2.
void CountSaved(const std::string& matrix, int64_t bytes, SavedBytes* saved) {
  const bool is_last = absl::EndsWith(matrix, ".w2");
  saved->none += bytes;
  if (is_last || absl::StartsWith(matrix, "attention.")) saved->selective += bytes;
  if (is_last) saved->full += bytes;
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
    std::vector<ParamFacts> a, b;
    std::map<std::string, NarrowSizes> inputs;
    int64_t elements = 0, outputs = 0, of_gate_up = 0;
    for (ParamFacts& param : unit.params) {
      param.in_fp32 =
          param.fixed;  // A router's selection bias: rounding would change which experts it chooses.
      param.fixed = true;
      param.choices_begin = -1;
      param.nf4 = lora.nf4 && TakesAdapter(unit, param);
      if (!IsTarget(lora, unit, param)) continue;
      const bool rows = param.partition.is_partitioned() && param.partition.dim == 0;
      const bool columns = param.partition.is_partitioned() && !rows;
      const TensorPartition whole;
      a.push_back(Adapter(LoraAName(param.name), {lora.rank, param.shape[1]},
                          columns ? param.partition : whole, LoraPart::kA));
      b.push_back(Adapter(LoraBName(param.name), {param.shape[0], lora.rank}, rows ? param.partition : whole,
                          LoraPart::kB));
      elements += a.back().elements() + b.back().elements();
      inputs[InputOf(param.name)].width = param.shape[1];
      inputs[InputOf(param.name)].ranks += lora.rank;
      outputs += param.shape[0];
      CountSaved(param.name, tokens * lora.rank * BytesOf(compute), &unit.saved_bytes);
      if (param.name == "ffn.w1" || param.name == "ffn.w3")
        of_gate_up += lora.rank * (param.shape[0] + param.shape[1]);
    }
    if (a.empty()) continue;
    unit.lora_scale = lora.scale();
    const auto count = static_cast<int>(a.size()), groups = static_cast<int>(inputs.size());
    for (std::vector<ParamFacts>* params : {&a, &b})
      unit.params.insert(unit.params.end(), params->begin(), params->end());
    unit.forward_flops += 2 * static_cast<double>(tokens) * static_cast<double>(elements);
    unit.selective_flops += 2 * static_cast<double>(tokens) * static_cast<double>(of_gate_up);
    int64_t width = 0, largest = 0;
    for (const auto& [name, sizes] : inputs) {
      width += sizes.width;
      largest = std::max(largest, sizes.ranks);
    }
    // Forward reads the inputs, and writes the outputs, to which the products of the matrices are added.
    // Backward does so with the gradients, and reads both again for the gradients of A and B.
    const int64_t bytes = tokens * BytesOf(compute);
    unit.forward_bytes += bytes * (width + 2 * outputs);
    unit.backward_bytes += bytes * (3 * width + 2 * outputs);
    unit.forward_kernels += groups + count;
    unit.backward_kernels += 2 * groups + 2 * count;
    unit.workspace_bytes += 2 * bytes * largest;
  }
}

}  // namespace fsdpd
