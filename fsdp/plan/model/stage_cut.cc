#include "fsdp/plan/model/stage_cut.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

// What a device multiplies while it moves a byte: an H200 some 180, an H100 230.
constexpr double kOperationsAByte = 200;

// A product's backward is two, of its input and of its matrix; attention's computes five where forward has
// two.
constexpr double kBackwardProducts = 2;
constexpr double kBackwardAttention = 2.5;

constexpr double kNever = std::numeric_limits<double>::infinity();

// The cost of a stage of units [first, end), and how those of several stages make one.
using Cost = std::function<double(int64_t first, int64_t end)>;
using Join = std::function<double(double, double)>;

struct Cut {
  double cost = kNever;
  std::vector<int64_t> stage_units;
};

// The cut of least cost, by the cost of the first stages of all that come before a unit.
Cut LeastCut(int64_t units, int64_t stages, const Cost& cost, const Join& join) {
  std::vector<std::vector<double>> least(stages + 1, std::vector<double>(units + 1, kNever));
  std::vector<std::vector<int64_t>> from(stages + 1, std::vector<int64_t>(units + 1, 0));
  least[0][0] = 0;
  for (int64_t s = 1; s <= stages; ++s) {
    for (int64_t end = s; end <= units; ++end) {
      for (int64_t first = s - 1; first < end; ++first) {
        const double joined = join(least[s - 1][first], cost(first, end));
        if (joined >= least[s][end]) continue;
        least[s][end] = joined;
        from[s][end] = first;
      }
    }
  }
  Cut cut;
  cut.cost = least[stages][units];
  for (int64_t s = stages, end = units; s > 0; --s) {
    cut.stage_units.insert(cut.stage_units.begin(), end - from[s][end]);
    end = from[s][end];
  }
  return cut;
}

}  // namespace

double WorkOf(const UnitFacts& unit) {
  const double products = unit.forward_flops - unit.attention_flops;
  const auto moved = static_cast<double>(unit.forward_bytes + unit.backward_bytes);
  return products * (1 + kBackwardProducts) + unit.attention_flops * (1 + kBackwardAttention) +
         moved * kOperationsAByte;
}

std::vector<int64_t> BalancedStages(const ModelFacts& model, int64_t stages) {
  const auto units = static_cast<int64_t>(model.units.size());
  FSDPD_CHECK(stages >= 1 && stages <= units);
  std::vector<double> before = {0};  // The work of the units before each.
  for (const UnitFacts& unit : model.units) before.push_back(before.back() + WorkOf(unit));
  const auto work = [&before](int64_t first, int64_t end) { return before[end] - before[first]; };
  const double most = LeastCut(units, stages, work, [](double a, double b) { return std::max(a, b); }).cost;
  // Sums of work differ in their last bits by where they begin.
  const double bound = most * (1 + 1e-9);
  const auto square = [&](int64_t first, int64_t end) {
    const double own = work(first, end);
    return own > bound ? kNever : own * own;
  };
  return LeastCut(units, stages, square, [](double a, double b) { return a + b; }).stage_units;
}

std::vector<ModelFacts> CutIntoStages(const ModelFacts& model, const std::vector<int64_t>& stage_units,
                                      DType hidden_type) {
  std::vector<ModelFacts> stages;
  int first_unit = 0, first_block = 0;
  for (const int64_t count : stage_units) {
    FSDPD_CHECK(count > 0 && first_unit + count <= static_cast<int64_t>(model.units.size()));
    ModelFacts stage;
    stage.stage.number = static_cast<int>(stages.size());
    stage.stage.count = static_cast<int>(stage_units.size());
    stage.stage.first_unit = first_unit;
    stage.stage.first_block = first_block;
    stage.stage.hidden_elements = model.units.front().output_bytes / BytesOf(hidden_type);
    stage.stage.hidden_type = hidden_type;
    for (int64_t u = 0; u < count; ++u) {
      UnitFacts unit = model.units[first_unit + u];
      if (unit.borrows >= 0) unit.borrows -= first_unit;
      FSDPD_CHECK(unit.borrows >= -1 && (model.units[first_unit + u].borrows < 0 || unit.borrows >= 0));
      first_block += unit.kind == UnitKind::kBlock ? 1 : 0;
      stage.units.push_back(std::move(unit));
    }
    first_unit += static_cast<int>(count);
    stages.push_back(std::move(stage));
  }
  FSDPD_CHECK(first_unit == static_cast<int>(model.units.size()));
  return stages;
}

std::vector<ModelFacts> StagesOf(const Spec& spec) {
  ModelFacts model = DescribeSpec(spec);
  if (spec.mesh.size(Axis::kPipeline) == 1) return {std::move(model)};
  FSDPD_CHECK(static_cast<int64_t>(spec.stage_units.size()) == spec.mesh.size(Axis::kPipeline));
  return CutIntoStages(model, spec.stage_units, spec.precision.compute);
}

}  // namespace fsdpd
