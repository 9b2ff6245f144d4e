// Labels of jobs, as Kubernetes has them, and selectors: "team=a,stage!=test,owner,!old".
//
// Pure functions. Errors: INVALID_ARGUMENT, with words that go on after a field's name.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

constexpr int kMaxLabels = 64;
constexpr int kMaxLabelRules = 32;

using Labels = google::protobuf::RepeatedPtrField<v1::Label>;

// One of a selector's, all of which have to hold.
struct LabelRule {
  enum class Kind { kIs, kIsNot, kThere, kNotThere };  // A label that is not there is not this value either.
  Kind kind = Kind::kIs;
  std::string key, value;
};
using Selector = std::vector<LabelRule>;

// By key.
absl::StatusOr<Labels> CheckedLabels(const Labels& labels);
absl::StatusOr<Selector> ParseSelector(const std::string& text);
bool Matches(const Selector& selector, const Labels& labels);

}  // namespace fsdpd
