#include "fsdp/plan/model/stage_partition.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "fsdp/plan/model/describe_model.h"

namespace fsdpd {
namespace {

// FLOPs per byte of memory traffic: about 180 on an H200, 230 on an H100.
constexpr double kOperationsAByte = 200;

// Time relative to a bf16 product.
constexpr double kFp8Saves = 0.5;

// A product's backward is two products (input and weight gradient); attention has five in backward and two in
// forward.
constexpr double kBackwardProducts = 2;
constexpr double kBackwardAttention = 2.5;

// Prefix sums have rounding errors that depend on their start.
constexpr double kSame = 1e-9;

constexpr double kNever = std::numeric_limits<double>::infinity();

// Whether units can be partitioned greedily into runs with at most `most` work. `before`: prefix sums of
// work.
bool CanBePartitioned(const std::vector<double>& before, int64_t runs, double most) {
  size_t begin = 0;
  for (int64_t r = 0; r < runs && begin + 1 < before.size(); ++r) {
    const auto end = std::upper_bound(before.begin(), before.end(), before[begin] + most) - 1;
    begin = std::max<size_t>(begin, end - before.begin());
  }
  return begin + 1 == before.size();
}

// Binary search for the smallest possible maximum work of a run, between the largest unit and the total.
double LeastOfMost(const std::vector<double>& before, int64_t runs) {
  double too_little = 0, enough = before.back();
  for (size_t u = 1; u < before.size(); ++u) too_little = std::max(too_little, before[u] - before[u - 1]);
  if (CanBePartitioned(before, runs, too_little)) return too_little;
  while (enough - too_little > kSame * before.back()) {
    const double middle = too_little + (enough - too_little) / 2;
    (CanBePartitioned(before, runs, middle) ? enough : too_little) = middle;
  }
  return enough;
}

// Makes replicas of parameters that a unit borrows from another stage.
void HaveCopies(UnitFacts* lender, UnitFacts* unit) {
  unit->borrows = -1;
  for (ParamFacts& param : lender->params) {
    param.tied_replica = TiedReplica::kOriginal;
    ParamFacts& copy = unit->params.emplace_back(param);
    copy.tied_replica = TiedReplica::kCopy;
    copy.owner = OwnerOf(lender->name, param.owner);
  }
}

// Among all partitions with at most `most` work per run, the one with the least sum of squares, by dynamic
// programming over (runs, prefix). Only few units can start a run that ends at a given unit.
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

DType HiddenTypeOf(const Spec& spec) {
  const auto* package = std::get_if<PackageConfig>(&spec.model);
  return package == nullptr ? spec.precision.compute : package->GraphOf(package->units.front()).output_type;
}

}  // namespace

double WorkOf(const UnitFacts& unit) {
  const auto moved = static_cast<double>(unit.forward_bytes + unit.backward_bytes);
  if (unit.measured.has_value()) {
    const auto& [forward, backward] = (*unit.measured)[static_cast<size_t>(Recompute::kNone)];
    return forward + backward + unit.engine_flops * (1 + kBackwardProducts) + moved * kOperationsAByte;
  }
  const double products = unit.forward_flops - unit.attention_flops - kFp8Saves * unit.fp8_flops;
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

std::vector<ModelFacts> PartitionIntoStages(const ModelFacts& model, const std::vector<int64_t>& run_units,
                                            int64_t stages, DType hidden_type) {
  FSDPD_CHECK(stages > 0 && !run_units.empty() && static_cast<int64_t>(run_units.size()) % stages == 0);
  std::vector<ModelFacts> partition(stages);
  std::vector<std::pair<size_t, int>> place;  // Per unit of the model: its stage, and its index there.
  int first_block = 0;
  for (size_t r = 0; r < run_units.size(); ++r) {
    const auto first_unit = static_cast<int>(place.size());
    ModelFacts& stage = partition[r % stages];
    if (r < partition.size()) stage.stage.runs.clear();
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
        FSDPD_CHECK(lender_stage == 0 && place.back().first == partition.size() - 1);
        HaveCopies(&partition[lender_stage].units[lender], &unit);
      }
    }
  }
  FSDPD_CHECK(place.size() == model.units.size());
  for (size_t s = 0; s < partition.size(); ++s) {
    StagePlace& stage = partition[s].stage;
    stage.number = static_cast<int>(s);
    stage.count = static_cast<int>(stages);
    partition[s].choices = model.choices;
    stage.hidden_elements = model.units.front().output_bytes / BytesOf(hidden_type);
    stage.hidden_type = hidden_type;
  }
  return partition;
}

std::vector<ModelFacts> StagesOf(const Spec& spec) {
  ModelFacts model = DescribeSpec(spec);
  const int64_t stages = spec.mesh.size(Axis::kPipeline);
  if (stages == 1) return {std::move(model)};
  std::vector<ModelFacts> partition =
      PartitionIntoStages(model, spec.stage_units, stages, HiddenTypeOf(spec));
  for (ModelFacts& stage : partition) stage.stage.defers_grads = spec.zero_bubble;
  return partition;
}

}  // namespace fsdpd
