#include "fsdp/plan/model/described_units.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace fsdpd {
namespace {

constexpr int64_t kTokenBytes = 8;  // int64.
constexpr int64_t kFp32Bytes = 4;

// Index of the unit of that name, or -1.
template <typename Unit>
int IndexOf(const std::vector<Unit>& units, const std::string& name) {
  const auto found = std::find_if(units.begin(), units.end(),
                                  [&](const Unit& unit) { return !name.empty() && unit.name == name; });
  return found == units.end() ? -1 : static_cast<int>(found - units.begin());
}

void SetKinds(ModelFacts* facts) {
  facts->units.front().kind = UnitKind::kEmbedding;
  facts->units.back().kind = UnitKind::kHead;
}

// ---- Plug-ins.

UnitFacts Unit(const UnitDescription& from, int64_t tokens, int64_t input_bytes, int64_t compute_bytes) {
  const auto bytes = [&](int64_t values) { return tokens * values * compute_bytes; };
  UnitFacts unit{from.name, UnitKind::kBlock, {}};
  int64_t largest = 0;
  for (const ParamDescription& param : from.params) {
    unit.params.push_back({param.name, param.shape, param.decay});
    const int64_t matrices = param.shape.size() == 3 ? param.shape[0] : 1;
    largest = std::max(largest, unit.params.back().elements() / matrices);
  }
  const int64_t selective =
      from.saved_values_selective == 0 ? from.saved_values : from.saved_values_selective;
  unit.saved_bytes = {std::max(bytes(from.saved_values), input_bytes),
                      std::max(bytes(selective), input_bytes), input_bytes};
  // Units use autograd: a gradient exists before it is cast into the bucket.
  unit.workspace_bytes = bytes(from.workspace_values) + largest * compute_bytes;
  unit.output_bytes = bytes(from.output_values);
  unit.forward_flops = static_cast<double>(tokens) * from.flops_per_token;
  unit.forward_bytes = unit.saved_bytes.none + unit.output_bytes;  // Saved activations are written once.
  unit.backward_bytes = 2 * unit.forward_bytes;
  return unit;
}

// ---- Packages.

// A module's parameters are known by their names in PyTorch. A unit that is not one module, such as the final
// norm with the output projection, has parameters of several.
ParamFacts ParamOf(const PackageUnit& unit, const PackageParam& from) {
  ParamFacts param{from.name, from.shape, from.decay};
  param.fixed = from.frozen;
  if (unit.module == unit.name) return param;
  const std::string full = unit.module.empty() ? from.name : unit.module + "." + from.name;
  const size_t dot = full.rfind('.');
  param.owner = dot == std::string::npos ? "" : full.substr(0, dot);
  param.name = dot == std::string::npos ? full : full.substr(dot + 1);
  return param;
}

// The planner adds the workspace to what recompute `none` saves. A call's peak has in addition the gradient
// of the unit's output, and all gradients that it returns.
int64_t WorkspaceOf(const PackageGraph& graph, int64_t saved_bytes, int64_t returned_bytes) {
  int64_t workspace = graph.evaluation_workspace_bytes - saved_bytes;
  for (const PackageVariant& variant : graph.variants) {
    const int64_t backward = variant.workspace_bytes + graph.output_bytes + returned_bytes;
    workspace = std::max(workspace, variant.saved_bytes - saved_bytes + backward);
  }
  return std::max<int64_t>(workspace, 0);
}

// The times of calls, if they were measured: then all have one (rule package_times).
void AddMeasured(const PackageGraph& graph, double matmul_flops, UnitFacts* unit) {
  if (graph.variants.front().forward_seconds == 0) return;
  unit->measured.emplace();
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    const PackageVariant& variant = graph.variants[graph.VariantFor(recompute)];
    (*unit->measured)[static_cast<size_t>(recompute)] = {variant.forward_seconds * matmul_flops,
                                                         variant.backward_seconds * matmul_flops};
  }
}

UnitFacts Unit(const PackageUnit& from, const PackageGraph& graph, int64_t input_bytes,
               const PackageConfig& model) {
  UnitFacts unit{from.name, UnitKind::kBlock, {}};
  int64_t grad_bytes = 0;
  for (const PackageParam& param : graph.params) {
    const auto index = static_cast<int64_t>(unit.params.size());
    unit.params.push_back(ParamOf(from, param));
    const bool is_of_head =
        graph.head.has_value() && (index == graph.head->weight || index == graph.head->bias);
    if (param.frozen || is_of_head) continue;
    unit.copied_grads.push_back(static_cast<int>(index));
    grad_bytes += unit.params.back().elements() * BytesOf(model.compute);
  }
  const auto saved = [&](Recompute recompute) {
    return graph.variants[graph.VariantFor(recompute)].saved_bytes;
  };
  unit.saved_bytes = {saved(Recompute::kNone), saved(Recompute::kSelective), saved(Recompute::kFull)};
  unit.workspace_bytes = WorkspaceOf(graph, unit.saved_bytes.none, grad_bytes + input_bytes);
  unit.output_bytes = graph.output_bytes;
  unit.forward_flops = graph.forward_flops;
  unit.attention_flops = graph.attention_flops;
  unit.selective_flops = graph.variants[graph.VariantFor(Recompute::kSelective)].recomputed_flops;
  AddMeasured(graph, model.matmul_flops, &unit);
  if (!unit.measured.has_value()) {
    unit.forward_bytes = graph.forward_bytes;
    unit.backward_bytes = graph.backward_bytes;
  }
  unit.backward_reads = graph.backward_reads_params;
  return unit;
}

// The engine's part of the last unit: the output projection and the loss, in chunks. It holds the final
// hidden states, their gradient and the targets, and per chunk the logits (on CPU also in fp32) and the slope
// of the soft cap. Products write the weight gradient into its buffer if that has their type, on CUDA also if
// it is fp32.
void AddHead(const PackageConfig& model, const ParamFacts& weight, DType grads, UnitFacts* unit) {
  const int64_t tokens = model.micro_batch * model.sequence_length, elements = weight.elements();
  const int64_t vocab = weight.shape.front(), hidden = elements / vocab;
  const int64_t compute_bytes = BytesOf(model.compute), hidden_bytes = tokens * hidden * compute_bytes;
  const bool casts = compute_bytes < kFp32Bytes, host = model.device == DeviceKind::kCpu;
  const int64_t copies = host ? kFp32Bytes + (casts ? kFp32Bytes : 0) : 0;
  const PackageHead& head = *model.GraphOf(model.units.back()).head;
  const int64_t slope = head.soft_cap > 0 ? compute_bytes : 0;
  const bool in_place = grads == model.compute || (!host && grads == DType::kFp32);
  const int64_t loss = std::min(tokens, kLossChunkTokens) * vocab * (compute_bytes + copies + slope) +
                       (in_place ? 0 : elements * compute_bytes);
  for (int64_t* saved : {&unit->saved_bytes.none, &unit->saved_bytes.selective, &unit->saved_bytes.full})
    *saved += hidden_bytes + tokens * kTokenBytes;
  unit->workspace_bytes = hidden_bytes + std::max(unit->workspace_bytes, loss);
  const double flops = 2 * static_cast<double>(tokens) * static_cast<double>(elements);
  unit->forward_flops += flops;
  unit->engine_flops = flops;
  const int64_t logits = tokens * vocab * compute_bytes;
  AddLossBytes(tokens, logits, elements * BytesOf(grads), unit);
  if (!in_place) unit->backward_bytes += LossChunks(tokens) * 2 * elements * compute_bytes;
  // Each operation on the logits reads and writes them: the scale, the three of the soft cap, and in backward
  // the scale, the four of the cap's slope and the product with it, which also reads the slope.
  const int64_t scale = head.logit_scale != 1 ? 2 : 0, cap = head.soft_cap > 0 ? 1 : 0;
  unit->forward_bytes += (scale + 6 * cap) * logits;
  unit->backward_bytes += (scale + 11 * cap) * logits;
  unit->backward_reads = true;
}

}  // namespace

ModelFacts DescribePlugin(const PluginConfig& model, int64_t tokens, int64_t compute_bytes) {
  int64_t input_bytes = tokens * kTokenBytes;
  ModelFacts facts;
  for (const UnitDescription& from : model.units) {
    UnitFacts unit = Unit(from, tokens, input_bytes, compute_bytes);
    unit.borrows = IndexOf(model.units, from.borrows);
    input_bytes = unit.output_bytes;
    facts.units.push_back(std::move(unit));
  }
  SetKinds(&facts);
  return facts;
}

ModelFacts DescribePackage(const PackageConfig& model, DType grads) {
  int64_t input_bytes = 0;  // Tokens have no gradient.
  ModelFacts facts;
  for (const PackageUnit& from : model.units) {
    UnitFacts unit = Unit(from, model.GraphOf(from), input_bytes, model);
    unit.borrows = IndexOf(model.units, from.tied_to);
    input_bytes = unit.output_bytes;
    facts.units.push_back(std::move(unit));
  }
  SetKinds(&facts);
  const int64_t token_bytes = model.micro_batch * model.sequence_length * kTokenBytes;
  SavedBytes& first = facts.units.front().saved_bytes;
  for (int64_t* saved : {&first.none, &first.selective, &first.full}) *saved = std::max(*saved, token_bytes);
  UnitFacts& head = facts.units.back();
  const auto own = static_cast<int64_t>(head.params.size());
  const int64_t weight = model.GraphOf(model.units.back()).head->weight;
  AddHead(model, weight < own ? head.params[weight] : facts.units[head.borrows].params[weight - own], grads,
          &head);
  return facts;
}

}  // namespace fsdpd
