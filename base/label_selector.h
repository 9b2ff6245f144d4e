// Selectors of labels, as Kubernetes has them: "team=a,stage!=test,owner,!old". The coordinator lists jobs by
// them, which fsdpctl matches again before it acts on what is listed, and finds nodes for jobs by them.
//
// Pure functions. Errors: INVALID_ARGUMENT, with words that go on after a field's name.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <algorithm>
#include <string>
#include <vector>

namespace fsdpd {

constexpr int kMaxLabels = 64;  // Of a job or a node.
constexpr int kMaxLabelRules = 32;

// One of a selector's, all of which have to hold.
struct LabelRule {
  enum class Kind { kIs, kIsNot, kThere, kNotThere };  // A label that is not there is not this value either.
  Kind kind = Kind::kIs;
  std::string key, value;
};
using Selector = std::vector<LabelRule>;

absl::Status CheckLabelKey(absl::string_view key);
absl::Status CheckLabelValue(absl::string_view value);

absl::StatusOr<Selector> ParseSelector(const std::string& text);

// `value`: of the label that has the rule's key, or null.
bool Holds(const LabelRule& rule, const std::string* value);

// As a selector has it: "team=a". And what has labels for which it does not hold: "is not team=a", "has no
// label owner".
std::string TextOf(const LabelRule& rule);
std::string WhyNot(const LabelRule& rule);

// The first that does not hold, or null. `labels`: of any type whose elements have key() and value().
template <typename Labels>
const LabelRule* FirstBroken(const Selector& selector, const Labels& labels) {
  const auto broken = std::find_if(selector.begin(), selector.end(), [&](const LabelRule& rule) {
    const auto found = std::find_if(labels.begin(), labels.end(),
                                    [&](const auto& label) { return label.key() == rule.key; });
    return !Holds(rule, found == labels.end() ? nullptr : &found->value());
  });
  return broken == selector.end() ? nullptr : &*broken;
}

template <typename Labels>
bool Matches(const Selector& selector, const Labels& labels) {
  return FirstBroken(selector, labels) == nullptr;
}

}  // namespace fsdpd
