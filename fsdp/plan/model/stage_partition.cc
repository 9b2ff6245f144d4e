#include "fsdp/plan/model/stage_partition.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

// What a device multiplies while it moves a byte: an H200 some 180, an H100 230.
constexpr double kOperationsAByte = 200;

// Of the time of a product in bf16.
constexpr double kFp8Saves = 0.5;

// A product's backward is two, of its input and of its matrix; attention's computes five where forward has
// two.
constexpr double kBackwardProducts = 2;
constexpr double kBackwardAttention = 2.5;

// Sums of work differ in their last bits by where they begin.
constexpr double kSame = 1e-9;

constexpr double kNever = std::numeric_limits<double>::infinity();

// `before`: the work of the units before each. Runs of no more than `most` can be cut, a unit at a time.
bool CanBeCut(const std::vector<double>& before, int64_t runs, double most) {
  size_t begin = 0;
  for (int64_t r = 0; r < runs && begin + 1 < before.size(); ++r) {
    const auto end = std::upper_bound(before.begin(), before.end(), before[begin] + most) - 1;
    begin = std::max<size_t>(begin, end - before.begin());
  }
  return begin + 1 == before.size();
}

// The least that the run with most work can have: a sum of some run's, found between the largest unit's and
// all of it.
double LeastOfMost(const std::vector<double>& before, int64_t runs) {
  double too_little = 0, enough = before.back();
  for (size_t u = 1; u < before.size(); ++u) too_little = std::max(too_little, before[u] - before[u - 1]);
  if (CanBeCut(before, runs, too_little)) return too_little;
  while (enough - too_little > kSame * before.back()) {
    const double middle = too_little + (enough - too_little) / 2;
    (CanBeCut(before, runs, middle) ? enough : too_little) = middle;
  }
  return enough;
}

// Of what a unit borrows from one of another stage.
void HaveCopies(UnitFacts* lender, UnitFacts* unit) {
  unit->borrows = -1;
  for (ParamFacts& param : lender->params) {
    param.twin = Twin::kOriginal;
    ParamFacts& copy = unit->params.emplace_back(param);
    copy.twin = Twin::kCopy;
    copy.owner = lender->name;
  }
}

// Of all cuts into runs of no more than `most` the one whose squares are least: the first so many runs of all
// that come before a unit, from the best of one run less. Only few units can begin a run that ends here.
std::vector<int64_t> EvenRuns(const std::vector<double>& before, int64_t runs, double most) {
  const auto units = static_cast<int64_t>(before.size()) - 1;
  std::vector<double> least(units + 1, kNever);
  std::vector<std::vector<int64_t>> from(runs + 1, std::vector<int64_t>(units + 1, 0));
  least[0] = 0;
  for (int64_t r = 1; r <= runs; ++r) {
    std::vector<double> with_run(units + 1, kNever);
    for (int64_t end = r; end <= units - (runs - r); ++end) {
      for (int64_t first = end - 1; first >= r - 1; --first) {
        const double own = before[end] - before[first];
        if (own > most) break;
        if (least[first] + own * own > with_run[end]) continue;
        with_run[end] = least[first] + own * own;
        from[r][end] = first;
      }
    }
    least = std::move(with_run);
  }
  FSDPD_CHECK(least[units] < kNever);
  std::vector<int64_t> run_units;
  for (int64_t r = runs, end = units; r > 0; --r) {
    run_units.insert(run_units.begin(), end - from[r][end]);
    end = from[r][end];
  }
  return run_units;
}

}  // namespace

double WorkOf(const UnitFacts& unit) {
  const double products = unit.forward_flops - unit.attention_flops - kFp8Saves * unit.fp8_flops;
  const auto moved = static_cast<double>(unit.forward_bytes + unit.backward_bytes);
  return products * (1 + kBackwardProducts) + unit.attention_flops * (1 + kBackwardAttention) +
         moved * kOperationsAByte;
}

std::vector<int64_t> BalancedRuns(const ModelFacts& model, int64_t runs) {
  const auto units = static_cast<int64_t>(model.units.size());
  FSDPD_CHECK(runs >= 1 && runs <= units);
  std::vector<double> before = {0};
  for (const UnitFacts& unit : model.units) before.push_back(before.back() + WorkOf(unit));
  return EvenRuns(before, runs, LeastOfMost(before, runs) + kSame * before.back());
}

std::vector<ModelFacts> CutIntoStages(const ModelFacts& model, const std::vector<int64_t>& run_units,
                                      int64_t stages, DType hidden_type) {
  FSDPD_CHECK(stages > 0 && !run_units.empty() && static_cast<int64_t>(run_units.size()) % stages == 0);
  std::vector<ModelFacts> cut(stages);
  std::vector<std::pair<size_t, int>> place;  // By unit of the chain: its stage, and its number there.
  int first_block = 0;
  for (size_t r = 0; r < run_units.size(); ++r) {
    const auto first_unit = static_cast<int>(place.size());
    ModelFacts& stage = cut[r % stages];
    if (r < cut.size()) stage.stage.runs.clear();
    const auto begin = static_cast<int>(stage.units.size()), count = static_cast<int>(run_units[r]);
    FSDPD_CHECK(count > 0 && first_unit + count <= static_cast<int>(model.units.size()));
    stage.stage.runs.push_back({begin, begin + count, first_unit, first_block});
    for (int u = 0; u < count; ++u) {
      place.emplace_back(r % stages, begin + u);
      UnitFacts& unit = stage.units.emplace_back(model.units[first_unit + u]);
      first_block += unit.kind == UnitKind::kBlock ? 1 : 0;
      if (unit.borrows < 0) continue;
      const auto [lender_stage, lender] = place[unit.borrows];
      if (lender_stage == place.back().first) {
        unit.borrows = lender;
      } else {
        FSDPD_CHECK(lender_stage == 0 && place.back().first == cut.size() - 1);
        HaveCopies(&cut[lender_stage].units[lender], &unit);
      }
    }
  }
  FSDPD_CHECK(place.size() == model.units.size());
  for (size_t s = 0; s < cut.size(); ++s) {
    StagePlace& stage = cut[s].stage;
    stage.number = static_cast<int>(s);
    stage.count = static_cast<int>(stages);
    cut[s].choices = model.choices;
    stage.hidden_elements = model.units.front().output_bytes / BytesOf(hidden_type);
    stage.hidden_type = hidden_type;
  }
  return cut;
}

std::vector<ModelFacts> StagesOf(const Spec& spec) {
  ModelFacts model = DescribeSpec(spec);
  const int64_t stages = spec.mesh.size(Axis::kPipeline);
  if (stages == 1) return {std::move(model)};
  std::vector<ModelFacts> cut = CutIntoStages(model, spec.stage_units, stages, spec.precision.compute);
  for (ModelFacts& stage : cut) stage.stage.puts_off = spec.zero_bubble;
  return cut;
}

}  // namespace fsdpd
