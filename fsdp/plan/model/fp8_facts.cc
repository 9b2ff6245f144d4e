#include "fsdp/plan/model/fp8_facts.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <map>

#include "fsdp/plan/model/expert_capacity.h"

namespace fsdpd {
namespace {

constexpr int64_t kInBytes = 2;     // bf16.
constexpr int64_t kScaleBytes = 4;  // One fp32 scale per row.

// A matrix product: [tokens x inputs] by [outputs x inputs]. With experts, each expert has its own tokens.
struct Product {
  int64_t tokens;
  int64_t inputs;
  int64_t outputs;
  bool reads_rounded = false;  // The producer of its input writes FP8 directly.
  int64_t experts = 1;
  int64_t filling = 0;     // Allocated rows beyond those of balanced routing, including padding.
  int64_t travelling = 0;  // Allocated rows in the all-to-all buffers, in each direction.
};

int64_t PaddedTokens(int64_t tokens) { return (tokens + kFp8Step - 1) / kFp8Step * kFp8Step; }

// Bytes of an FP8 matrix with its scales.
int64_t Room(int64_t rows, int64_t width) { return rows * width + rows * kScaleBytes; }

// Peak workspace of one product's operands, over its three products: output (the weight arrives quantized),
// input gradient (the weight is transposed), weight gradient. The CPU multiplies in fp32 and also holds the
// result in fp32.
int64_t Workspace(const Product& p, bool host) {
  const int64_t padded = PaddedTokens(p.tokens);
  const auto fp32 = [host](int64_t rows, int64_t columns, int64_t inner) {
    return host ? 4 * (rows * inner + columns * inner + 2 * rows * columns) : 0;
  };
  const auto room = [&](int64_t rows, int64_t columns, int64_t inner) {
    return Room(rows, inner) + Room(columns, inner) + fp32(rows, columns, inner);
  };
  return std::max({Room(p.tokens, p.inputs) + fp32(p.tokens, p.outputs, p.inputs),
                   room(p.tokens, p.inputs, p.outputs), room(p.outputs, p.inputs, padded)});
}

// The same for grouped expert products, which CUDA runs together: weight gradients have scales per expert,
// computed in scratch memory of the same size. The CPU runs one expert at a time, and one expert may get all
// tokens. `read`: number of tokens that the rows are copies of, if the product reads tokens; else 0.
int64_t ExpertsWorkspace(const Product& p, int64_t read, bool host) {
  if (host) return Room(p.tokens, p.inputs) + Workspace(p, host);
  const int64_t rows = p.tokens + p.filling;
  const int64_t turned = p.experts * Room(p.inputs, p.outputs), scales = p.experts * p.outputs * kScaleBytes;
  const int64_t columns =
      rows * (p.inputs + p.outputs) + p.experts * (p.inputs + p.outputs) * 2 * kScaleBytes;
  return std::max({Room(rows, p.inputs) + Room(std::max(rows, read), p.inputs),
                   Room(rows, p.outputs) + turned + scales, columns});
}

// Quantization traffic per element. A row stays in cache until its maximum is known, so it is read once;
// columns are read twice.
int64_t RowsMoved(int64_t elements) { return elements * (kInBytes + 1); }
int64_t ColumnsMoved(int64_t elements) { return elements * (2 * kInBytes + 1); }
int64_t TurnMoved(int64_t elements) { return 2 * elements; }

ParamFacts* Find(const std::string& name, UnitFacts* unit) {
  const auto found = std::find_if(unit->params.begin(), unit->params.end(),
                                  [&](const ParamFacts& param) { return param.name == name; });
  return found == unit->params.end() ? nullptr : &*found;
}

// Matrices of one product that are not adjacent in memory are copied together first: they are in different
// buckets, or the rank uses only a part of replicated key/value projections.
int64_t JoinedBytes(const std::vector<ParamFacts*>& matrices, const Product& p) {
  if (matrices.size() == 1) return 0;
  const ParamFacts& first = *matrices.front();
  const bool alike = std::all_of(matrices.begin(), matrices.end(), [&](const ParamFacts* each) {
    return each->trainable == first.trainable && each->partition.parts == first.partition.parts;
  });
  return alike ? 0 : Room(p.outputs, p.inputs);
}

// SwiGLU between two FP8 products writes its gradients and its output quantized (fsdp/kernels/fp8_swiglu.h
// documents the traffic); without FP8 it moves 12 bytes per element.
int64_t SwigluWorkspace(int64_t tokens, int64_t width, bool host) {
  const int64_t padded = PaddedTokens(tokens);
  const int64_t fp8 = Room(tokens, 2 * width) + Room(2 * width, padded) + Room(width, padded);
  return host ? fp8 + 8 * tokens * 2 * width : fp8;
}
int64_t SwigluMoved(int64_t elements) { return (17 - 12) * elements; }

void AddProduct(const std::vector<ParamFacts*>& matrices, const Product& p, bool host, UnitFacts* unit,
                int64_t* workspace) {
  const int64_t x = p.tokens * p.inputs, y = p.tokens * p.outputs, matrix = p.inputs * p.outputs;
  unit->fp8_flops += 2.0 * static_cast<double>(p.tokens) * static_cast<double>(matrix);
  // An input that is already FP8 saves one byte per element.
  unit->forward_bytes += p.reads_rounded ? -x : RowsMoved(x);
  unit->backward_bytes += RowsMoved(y) + TurnMoved(matrix) + ColumnsMoved(y + x);
  *workspace = std::max(*workspace, Workspace(p, host) + JoinedBytes(matrices, p));
}

// The down projection reads rows computed here, which are quantized here. Gate and up projections read
// tokens, which are quantized before they are copied into rows, so the copy moves half the bytes. Backward
// quantizes tokens in place and needs no row copies, except in rows that are sent to other ranks.
void AddExpertsProduct(const Product& p, bool of_tokens, int64_t tokens, bool host, UnitFacts* unit,
                       int64_t* workspace) {
  const int64_t x = p.tokens * p.inputs, y = p.tokens * p.outputs,
                matrices = p.experts * p.inputs * p.outputs;
  unit->fp8_flops += 2.0 * static_cast<double>(x) * static_cast<double>(p.outputs);
  unit->forward_bytes += of_tokens ? RowsMoved(tokens * p.inputs) - 2 * x : RowsMoved(x);
  unit->backward_bytes += RowsMoved(y) + TurnMoved(matrices) + ColumnsMoved(y + x);
  if (p.travelling == 0) unit->backward_bytes -= 2 * kInBytes * (of_tokens ? x : y);
  *workspace = std::max(*workspace, ExpertsWorkspace(p, of_tokens ? tokens : 0, host));
  if (!of_tokens) return;
  for (UnitExchange& exchange : unit->exchanges) {
    const int64_t all = p.travelling * p.inputs;
    const bool of_rows = exchange.what == Exchange::kAllToAll && exchange.forward_elements == all;
    if (!of_rows) continue;
    exchange.forward_elements = exchange.selective_elements = all / kInBytes;
    unit->exchanges.push_back(
        {exchange.group, p.travelling, 0, Exchange::kAllToAll, DType::kFp32, p.travelling});
    break;
  }
}

// The matrices of a fused product that the layer has; empty if any of them stays in bf16.
std::vector<ParamFacts*> Fp8Matrices(const std::vector<std::string>& product, const Spec& spec,
                                     UnitFacts* unit) {
  std::vector<ParamFacts*> matrices;
  for (const std::string& name : product) {
    ParamFacts* param = Find(name, unit);
    if (param == nullptr || !CanBeFp8(*unit, *param)) return {};
    const std::string full = absl::StrCat(unit->name, ".", name);
    for (const std::string& pattern : spec.precision.keep_bf16) {
      if (MatchesPattern(full, pattern)) return {};
    }
    matrices.push_back(param);
  }
  return matrices;
}

}  // namespace

const std::vector<std::vector<std::string>>& LayerProducts() {
  static const auto* products =
      new std::vector<std::vector<std::string>>{{"attention.wq", "attention.wk", "attention.wv"},
                                                {"attention.wo"},
                                                {"ffn.w1", "ffn.w3"},
                                                {"ffn.w2"},
                                                {"ffn.experts.w1", "ffn.experts.w3"},
                                                {"ffn.experts.w2"},
                                                {"ffn.shared.w1", "ffn.shared.w3"},
                                                {"ffn.shared.w2"}};
  return *products;
}

bool CanBeFp8(const UnitFacts& unit, const ParamFacts& param) {
  if (unit.kind != UnitKind::kBlock) return false;
  const bool has_latents = std::any_of(unit.params.begin(), unit.params.end(),
                                       [](const ParamFacts& each) { return each.name == "attention.wkv_b"; });
  if (has_latents && param.name == "attention.wq") return false;
  const auto& products = LayerProducts();
  return std::any_of(products.begin(), products.end(), [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), param.name) != names.end();
  });
}

void DescribeFp8(const Spec& spec, ModelFacts* facts) {
  const int64_t tokens = spec.micro_batch * spec.data.sequence_length / spec.mesh.size(Axis::kContext);
  const bool host = spec.device == DeviceKind::kCpu, alone = spec.mesh.size(Axis::kTensor) == 1;
  const int64_t per_token = std::get<LlamaConfig>(spec.model).experts.per_token;
  // Outputs of norms and of SwiGLU are quantized by the same kernel.
  const auto reads_rounded = [alone](const std::string& matrix) {
    return matrix == "ffn.shared.w2" ||
           (alone && (matrix == "attention.wq" || matrix == "ffn.w1" || matrix == "ffn.w2"));
  };
  for (UnitFacts& unit : facts->units) {
    int64_t workspace = 0;
    std::map<std::string, Product> in_fp8;  // Key: name of the first matrix.
    for (const std::vector<std::string>& names : LayerProducts()) {
      const std::vector<ParamFacts*> matrices = Fp8Matrices(names, spec, &unit);
      if (matrices.empty()) continue;
      Product product = {tokens, matrices.front()->shape.back(), 0, reads_rounded(names.front())};
      for (ParamFacts* matrix : matrices) {
        matrix->fp8 = true;
        product.outputs += matrix->shape[matrix->shape.size() - 2];
      }
      if (matrices.front()->shape.size() > 2) {
        product.tokens *= per_token;
        const int64_t ranks = spec.mesh.size(Axis::kExpert);
        const bool gathers_tokens = GathersTokens(ranks, per_token);
        product.experts = matrices.front()->shape.front();
        product.filling = host ? 0 : product.experts * kExpertRowStep;
        if (ranks > 1 && !gathers_tokens)
          product.travelling =
              ranks * RowsOfPart(kExpertCapacity, product.tokens, per_token, ranks, product.experts);
        if (ranks > 1 && !host) {
          const int64_t room =
              RowsOfCapacity(kExpertCapacity, product.tokens, per_token, ranks, product.experts);
          product.filling += (gathers_tokens ? room : product.travelling) - product.tokens;
        }
        AddExpertsProduct(product, names.front() == "ffn.experts.w1",
                          gathers_tokens ? ranks * tokens : tokens, host, &unit, &workspace);
        continue;
      }
      AddProduct(matrices, product, host, &unit, &workspace);
      in_fp8.emplace(names.front(), product);
    }
    if (alone && in_fp8.count("ffn.w1") > 0 && in_fp8.count("ffn.w2") > 0) {
      const int64_t width = in_fp8.at("ffn.w2").inputs, made = tokens * width;
      unit.backward_bytes += SwigluMoved(made) - RowsMoved(2 * made) - ColumnsMoved(3 * made);
      workspace = std::max(workspace, SwigluWorkspace(tokens, width, host));
    }
    unit.workspace_bytes += workspace;
    // With replicated key/value projections, a rank multiplies only one head.
    unit.fp8_flops = std::min(unit.fp8_flops, unit.forward_flops - unit.attention_flops);
  }
}

}  // namespace fsdpd
