// Fuzzer of label selectors: an accepted selector can be reconstructed from its rules, and each rule matches
// the labels that it describes.
#include <string>

#include "base/api/label_selector.h"
#include "base/check.h"
#include "tests/fuzzers/cases.h"

namespace {

using Kind = fsdpd::LabelRule::Kind;

std::string Written(const fsdpd::LabelRule& rule) {
  switch (rule.kind) {
    case Kind::kIs:
      return rule.key + "=" + rule.value;
    case Kind::kIsNot:
      return rule.key + "!=" + rule.value;
    case Kind::kExists:
      return rule.key;
    case Kind::kNotExists:
      return "!" + rule.key;
  }
  return {};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto selector = fsdpd::ParseSelector(std::string(reinterpret_cast<const char*>(data), size));
  if (!selector.ok()) return 0;
  FSDPD_CHECK(selector->size() <= fsdpd::kMaxLabelRules);
  std::string text;
  for (const fsdpd::LabelRule& rule : *selector) {
    FSDPD_CHECK(fsdpd::CheckLabelKey(rule.key).ok() && fsdpd::CheckLabelValue(rule.value).ok());
    FSDPD_CHECK(Holds(rule, &rule.value) == (rule.kind == Kind::kIs || rule.kind == Kind::kExists));
    FSDPD_CHECK(Holds(rule, nullptr) == (rule.kind == Kind::kIsNot || rule.kind == Kind::kNotExists));
    text += (text.empty() ? "" : ",") + Written(rule);
  }
  const auto again = fsdpd::ParseSelector(text);
  FSDPD_CHECK(again.ok() && again->size() == selector->size());
  for (size_t i = 0; i < again->size(); ++i) FSDPD_CHECK(Written((*again)[i]) == Written((*selector)[i]));
  return 0;
}
