#include "fsdp/plan/verify/verify_order.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "base/check.h"

namespace fsdpd {
namespace {

// Dependencies that only point backwards cannot form a cycle.
absl::Status CheckEdges(const VerifyCase& verified, int i) {
  const Instruction& at = verified.At(i);
  for (const int other : at.after) {
    if (other < 0 || other >= i)
      return RuleError(1, verified.Name(i), " waits for #", other, ", which is not earlier");
    if (verified.At(other).lane == at.lane)
      return RuleError(1, verified.Name(i), " waits for #", other, " on its own lane");
  }
  for (const int other : at.after_previous) {
    if (other < 0 || other >= verified.count()) {
      return RuleError(1, verified.Name(i), " waits for #", other,
                       " of the previous step, which does not exist");
    }
    if (verified.At(other).lane == at.lane) {
      return RuleError(1, verified.Name(i), " waits for #", other,
                       " of the previous step, which is on its own lane");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HappensBefore> HappensBefore::Make(const VerifyCase& verified) {
  for (int i = 0; i < verified.count(); ++i) FSDPD_RETURN_IF_ERROR(CheckEdges(verified, i));
  HappensBefore order(verified);
  order.AddStep();
  order.AddStep();
  return order;
}

void HappensBefore::AddStep() {
  const int base = static_cast<int>(clock_.size());
  const auto join = [this](Clock* clock, EventIndex other) {
    for (size_t k = 0; k < kLanes; ++k) (*clock)[k] = std::max((*clock)[k], clock_[other][k]);
  };
  for (int i = 0; i < verified_->count(); ++i) {
    const Instruction& at = verified_->At(i);
    const auto lane = static_cast<size_t>(at.lane);
    Clock clock = last_[lane];
    for (const int other : at.after) join(&clock, base + other);
    if (base > 0) {
      for (const int other : at.after_previous) join(&clock, base - verified_->count() + other);
    }
    place_.push_back(++clock[lane]);
    clock_.push_back(clock);
    last_[lane] = clock;
  }
}

std::string HappensBefore::Name(EventIndex event, EventIndex other) const {
  const std::string name = verified_->Name(IndexOf(event));
  return StepOf(event) == StepOf(other) ? name : absl::StrCat(name, " of the step after");
}

}  // namespace fsdpd
