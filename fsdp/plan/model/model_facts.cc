#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

const char* VerbOf(Exchange what) {
  constexpr const char* kNames[] = {"sums", "gathers", "sums its part of", "sends"};
  return kNames[static_cast<size_t>(what)];
}

int64_t SavedBytes::With(Recompute recompute) const {
  return recompute == Recompute::kNone ? none : recompute == Recompute::kSelective ? selective : full;
}

int64_t UnitFacts::elements() const {
  int64_t sum = 0;
  for (const ParamFacts& param : params) sum += param.elements();
  return sum;
}

void AddLossBytes(int64_t tokens, int64_t logits_bytes, int64_t weight_grad_bytes, UnitFacts* unit) {
  unit->forward_bytes += logits_bytes;
  unit->backward_bytes += 3 * logits_bytes + (LossChunks(tokens) - 1) * weight_grad_bytes;
}

int64_t ModelFacts::elements() const {
  int64_t sum = 0;
  for (const UnitFacts& unit : units) sum += unit.elements();
  return sum;
}

bool MatchesPattern(const std::string& name, const std::string& pattern) {
  size_t n = 0, p = 0;
  size_t star = std::string::npos, resume = 0;  // The last `*`, and the end of the text it matched so far.
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string::npos) {
      p = star + 1;  // Backtrack: extend the last `*` by one character.
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace fsdpd
