// Label selectors like those of Kubernetes: "team=a,stage!=test,owner,!old". The coordinator lists jobs by
// them (fsdpctl matches again before it acts on the result) and selects nodes for jobs by them.
//
// Pure functions. Errors: INVALID_ARGUMENT. The message has no subject; callers prefix the field name.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <algorithm>
#include <string>
#include <vector>

namespace fsdpd {

constexpr int kMaxLabels = 64;  // Per job or node.
constexpr int kMaxLabelRules = 32;

// One requirement of a selector; all of them must hold.
struct LabelRule {
  enum class Kind { kIs, kIsNot, kExists, kNotExists };  // kIsNot also holds if the label is missing.
  Kind kind = Kind::kIs;
  std::string key, value;
};
using Selector = std::vector<LabelRule>;

absl::Status CheckLabelKey(absl::string_view key);
absl::Status CheckLabelValue(absl::string_view value);

absl::StatusOr<Selector> ParseSelector(const std::string& text);

// `value`: value of the label with the key of the rule, or null.
bool Holds(const LabelRule& rule, const std::string* value);

// Text of the rule ("team=a"), and why it does not hold for some labels ("is not team=a", "has no label
// owner").
std::string TextOf(const LabelRule& rule);
std::string WhyNot(const LabelRule& rule);

// The first rule that does not hold, or null. `labels`: a range whose elements have key() and value().
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
