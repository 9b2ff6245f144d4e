#include "fsdp/plan/layout.h"

#include <algorithm>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr int64_t kParamAlignBytes = 256;
constexpr int64_t kShardAlignBytes = 16;

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

UnitLayout MakeUnitLayout(const UnitFacts& facts, int64_t shards, DType compute) {
  UnitLayout unit;
  unit.name = facts.name;
  int64_t end = 0;
  for (const ParamFacts& param : facts.params) {
    const int64_t offset = RoundUp(end, kParamAlignBytes / BytesOf(compute));
    unit.params.push_back({param.name, param.shape, param.decay, offset, param.elements()});
    unit.elements += param.elements();
    end = offset + param.elements();
  }
  unit.shard_elements = RoundUp(RoundUp(end, shards) / shards, kShardAlignBytes / BytesOf(compute));
  unit.bucket_elements = unit.shard_elements * shards;
  return unit;
}

}  // namespace

int64_t Layout::elements() const {
  int64_t sum = 0;
  for (const UnitLayout& unit : units) sum += unit.elements;
  return sum;
}

double Layout::padding_ratio() const {
  const auto own = static_cast<double>(elements());
  return own == 0 ? 0 : (static_cast<double>(shard_elements() * shards) - own) / own;
}

int64_t Layout::shard_elements() const {
  int64_t sum = 0;
  for (const UnitLayout& unit : units) sum += unit.shard_elements;
  return sum;
}

Layout MakeLayout(const ModelFacts& model, int64_t shards, DType compute) {
  FSDPD_CHECK(shards > 0);
  Layout layout;
  layout.shards = shards;
  for (const UnitFacts& unit : model.units) layout.units.push_back(MakeUnitLayout(unit, shards, compute));
  return layout;
}

std::vector<ShardPiece> PiecesOf(const UnitLayout& unit, int64_t shard) {
  const int64_t begin = shard * unit.shard_elements;
  const int64_t end = begin + unit.shard_elements;
  std::vector<ShardPiece> pieces;
  for (size_t i = 0; i < unit.params.size(); ++i) {
    const ParamSlot& param = unit.params[i];
    const int64_t first = std::max(begin, param.offset);
    const int64_t last = std::min(end, param.offset + param.elements);
    if (first >= last) continue;
    pieces.push_back({static_cast<int>(i), first - param.offset, first - begin, last - first});
  }
  return pieces;
}

}  // namespace fsdpd
