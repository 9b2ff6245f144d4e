#include "fsdp/plan/model/fp8_facts.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <map>

#include "fsdp/plan/model/expert_capacity.h"

namespace fsdpd {
namespace {

constexpr int64_t kInBytes = 2;     // bf16.
constexpr int64_t kScaleBytes = 4;  // One fp32 a row.

// A product of tokens: [tokens x inputs] by [outputs x inputs]. Of many matrices each has its own tokens.
struct Product {
  int64_t tokens;
  int64_t inputs;
  int64_t outputs;
  bool reads_rounded = false;  // Its input is written in FP8 by what makes it.
  int64_t experts = 1;
  int64_t filling = 0;     // Rows of no token, that there is room for, and of more than even routing's.
  int64_t travelling = 0;  // Rows that there is room for on their way to other ranks' experts and from them.
};

int64_t PaddedTokens(int64_t tokens) { return (tokens + kFp8Step - 1) / kFp8Step * kFp8Step; }

// Of a matrix in FP8.
int64_t Room(int64_t rows, int64_t width) { return rows * width + rows * kScaleBytes; }

// What one product's operands take at most: of the output, whose matrix came rounded, of the input's
// gradient, whose matrix is turned, of the matrix's. The CPU multiplies them as fp32, and holds the result in
// fp32 too.
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

// The same of experts' products, which are made at once on CUDA: their matrices' gradients have scales for
// each expert, found in as much room. The host takes one expert after the other, of which one may have all
// tokens. `read`: the tokens that rows are copies of, where the product is of such.
int64_t ExpertsWorkspace(const Product& p, int64_t read, bool host) {
  if (host) return Room(p.tokens, p.inputs) + Workspace(p, host);
  const int64_t rows = p.tokens + p.filling;
  const int64_t turned = p.experts * Room(p.inputs, p.outputs), scales = p.experts * p.outputs * kScaleBytes;
  const int64_t columns =
      rows * (p.inputs + p.outputs) + p.experts * (p.inputs + p.outputs) * 2 * kScaleBytes;
  return std::max({Room(rows, p.inputs) + Room(std::max(rows, read), p.inputs),
                   Room(rows, p.outputs) + turned + scales, columns});
}

// A row is read once, as it stays near until its largest value is known; columns are read twice.
int64_t RowsMoved(int64_t elements) { return elements * (kInBytes + 1); }
int64_t ColumnsMoved(int64_t elements) { return elements * (2 * kInBytes + 1); }
int64_t TurnMoved(int64_t elements) { return 2 * elements; }

ParamFacts* Find(const std::string& name, UnitFacts* unit) {
  const auto found = std::find_if(unit->params.begin(), unit->params.end(),
                                  [&](const ParamFacts& param) { return param.name == name; });
  return found == unit->params.end() ? nullptr : &*found;
}

// Matrices that are no neighbours in memory are copied beside each other first: a bucket of another kind
// parts them, or what a rank leaves of keys and values that it has whole.
int64_t JoinedBytes(const std::vector<ParamFacts*>& matrices, const Product& p) {
  if (matrices.size() == 1) return 0;
  const ParamFacts& first = *matrices.front();
  const bool alike = std::all_of(matrices.begin(), matrices.end(), [&](const ParamFacts* each) {
    return each->trainable == first.trainable && each->cut.parts == first.cut.parts;
  });
  return alike ? 0 : Room(p.outputs, p.inputs);
}

// SwiGLU between two products in FP8 writes its gradients and its product for the products after it
// (fsdp/kernels/fp8_swiglu.h says what moves); without FP8 it moves 12 bytes for each number.
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
  // One that reads what was rounded spares the byte that FP8 is smaller by.
  unit->forward_bytes += p.reads_rounded ? -x : RowsMoved(x);
  unit->backward_bytes += RowsMoved(y) + TurnMoved(matrix) + ColumnsMoved(y + x);
  *workspace = std::max(*workspace, Workspace(p, host) + JoinedBytes(matrices, p));
}

// Of experts the outputs' product is of rows that are made here, and the others' of tokens, which are rounded
// before they are copied into rows: those are read and written in half the bytes. Backward rounds tokens
// where they are, and what would be a row's copy is neither written nor read, but where it goes to others.
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
    const bool of_rows = exchange.what == Exchange::kSend && exchange.forward_elements == all;
    if (!of_rows) continue;
    exchange.forward_elements = exchange.selective_elements = all / kInBytes;
    unit->exchanges.push_back({exchange.group, p.travelling, 0, Exchange::kSend, DType::kFp32, p.travelling});
    break;
  }
}

// Of the matrices that are one product those that the layer has; none where one of them stays in bf16.
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
  // What norms make for these, and what SwiGLU makes, is rounded by their kernels.
  const auto reads_rounded = [alone](const std::string& matrix) {
    return matrix == "ffn.shared.w2" ||
           (alone && (matrix == "attention.wq" || matrix == "ffn.w1" || matrix == "ffn.w2"));
  };
  for (UnitFacts& unit : facts->units) {
    int64_t workspace = 0;
    std::map<std::string, Product> in_fp8;  // By their first matrix.
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
        const bool tokens_travel = TokensTravel(ranks, per_token);
        product.experts = matrices.front()->shape.front();
        product.filling = host ? 0 : product.experts * kExpertRowStep;
        if (ranks > 1 && !tokens_travel)
          product.travelling =
              ranks * RowsOfPart(kExpertCapacity, product.tokens, per_token, ranks, product.experts);
        if (ranks > 1 && !host) {
          const int64_t room = RowsOfRoom(kExpertCapacity, product.tokens, per_token, ranks, product.experts);
          product.filling += (tokens_travel ? room : product.travelling) - product.tokens;
        }
        AddExpertsProduct(product, names.front() == "ffn.experts.w1", tokens_travel ? ranks * tokens : tokens,
                          host, &unit, &workspace);
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
    // Of keys and values that a rank has whole it multiplies one head's.
    unit.fp8_flops = std::min(unit.fp8_flops, unit.forward_flops - unit.attention_flops);
  }
}

}  // namespace fsdpd
