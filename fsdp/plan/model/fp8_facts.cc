#include "fsdp/plan/model/fp8_facts.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <map>

namespace fsdpd {
namespace {

constexpr int64_t kInBytes = 2;     // bf16.
constexpr int64_t kScaleBytes = 4;  // One fp32 a row.

// A product of tokens: [tokens x inputs] by [outputs x inputs].
struct Product {
  int64_t tokens;
  int64_t inputs;
  int64_t outputs;
  bool reads_rounded = false;  // Its input is written in FP8 by what makes it.
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
  static const auto* products = new std::vector<std::vector<std::string>>{
      {"attention.wq", "attention.wk", "attention.wv"}, {"attention.wo"}, {"ffn.w1", "ffn.w3"}, {"ffn.w2"}};
  return *products;
}

bool CanBeFp8(const UnitFacts& unit, const ParamFacts& param) {
  if (unit.kind != UnitKind::kBlock) return false;
  const auto& products = LayerProducts();
  return std::any_of(products.begin(), products.end(), [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), param.name) != names.end();
  });
}

void DescribeFp8(const Spec& spec, ModelFacts* facts) {
  const int64_t tokens = spec.micro_batch * spec.data.sequence_length / spec.mesh.size(Axis::kContext);
  const bool host = spec.device == DeviceKind::kCpu, alone = spec.mesh.size(Axis::kTensor) == 1;
  for (UnitFacts& unit : facts->units) {
    int64_t workspace = 0;
    std::map<std::string, Product> in_fp8;  // By their first matrix.
    for (const std::vector<std::string>& names : LayerProducts()) {
      Product product = {tokens, 0, 0};
      const std::vector<ParamFacts*> matrices = Fp8Matrices(names, spec, &unit);
      for (ParamFacts* matrix : matrices) {
        matrix->fp8 = true;
        product.inputs = matrix->shape[1];
        product.outputs += matrix->shape[0];
      }
      if (product.outputs == 0) continue;
      // Attention's output is no kernel's of ours.
      product.reads_rounded = alone && names.front() != "attention.wo";
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
