#include "base/api/label_selector.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxName = 63;     // Limit of a value, and of a key without prefix.
constexpr size_t kMaxPrefix = 253;  // Limit of a DNS name.

bool IsName(absl::string_view text) {
  if (text.empty() || text.size() > kMaxName) return false;
  const auto inner = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  };
  return absl::ascii_isalnum(static_cast<unsigned char>(text.front())) &&
         absl::ascii_isalnum(static_cast<unsigned char>(text.back())) &&
         std::all_of(text.begin(), text.end(), inner);
}

bool IsDnsName(absl::string_view text) {
  if (text.empty() || text.size() > kMaxPrefix) return false;
  for (const absl::string_view part : absl::StrSplit(text, '.')) {
    const auto lower = [](unsigned char c) {
      return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
    };
    if (part.empty() || part.size() > kMaxName || part.front() == '-' || part.back() == '-' ||
        !std::all_of(part.begin(), part.end(), lower))
      return false;
  }
  return true;
}

absl::StatusOr<LabelRule> ParseRule(absl::string_view text) {
  LabelRule rule;
  const size_t equals = text.find('=');
  absl::string_view key = text.substr(0, equals);
  if (equals == absl::string_view::npos) {
    rule.kind = absl::ConsumePrefix(&key, "!") ? LabelRule::Kind::kNotExists : LabelRule::Kind::kExists;
  } else {
    rule.kind = absl::ConsumeSuffix(&key, "!") ? LabelRule::Kind::kIsNot : LabelRule::Kind::kIs;
    absl::string_view value = text.substr(equals + 1);
    absl::ConsumePrefix(&value, "=");  // "==" is valid in Kubernetes too.
    rule.value = std::string(absl::StripAsciiWhitespace(value));
  }
  rule.key = std::string(absl::StripAsciiWhitespace(key));
  FSDPD_RETURN_IF_ERROR(CheckLabelKey(rule.key));
  FSDPD_RETURN_IF_ERROR(CheckLabelValue(rule.value));
  return rule;
}

}  // namespace

absl::Status CheckLabelKey(absl::string_view key) {
  const std::pair<absl::string_view, absl::string_view> cut = absl::StrSplit(key, absl::MaxSplits('/', 1));
  const bool has_prefix = key.find('/') != absl::string_view::npos;
  if (has_prefix ? IsDnsName(cut.first) && IsName(cut.second) : IsName(key)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "'", key.substr(0, 80), "' is not a label key: want at most ", kMaxName,
      " letters, digits, '-', '_' and '.', the first and last a letter or digit, after a DNS name "
      "and '/' where it needs one"));
}

absl::Status CheckLabelValue(absl::string_view value) {
  if (value.empty() || IsName(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", value.substr(0, 80), "' is not a label value: want at most ", kMaxName,
                   " letters, digits, '-', '_' and '.', the first and last a letter or digit"));
}

absl::StatusOr<Selector> ParseSelector(const std::string& text) {
  Selector selector;
  if (text.empty()) return selector;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    if (selector.size() == kMaxLabelRules)
      return absl::InvalidArgumentError(absl::StrCat("has more than ", kMaxLabelRules, " rules"));
    FSDPD_ASSIGN_OR_RETURN(LabelRule rule, ParseRule(absl::StripAsciiWhitespace(part)));
    selector.push_back(std::move(rule));
  }
  return selector;
}

std::string TextOf(const LabelRule& rule) {
  switch (rule.kind) {
    case LabelRule::Kind::kIs:
      return absl::StrCat(rule.key, "=", rule.value);
    case LabelRule::Kind::kIsNot:
      return absl::StrCat(rule.key, "!=", rule.value);
    case LabelRule::Kind::kExists:
      return rule.key;
    case LabelRule::Kind::kNotExists:
      return absl::StrCat("!", rule.key);
  }
  return "";
}

std::string WhyNot(const LabelRule& rule) {
  switch (rule.kind) {
    case LabelRule::Kind::kIs:
      return absl::StrCat("is not ", rule.key, "=", rule.value);
    case LabelRule::Kind::kIsNot:
      return absl::StrCat("is ", rule.key, "=", rule.value);
    case LabelRule::Kind::kExists:
      return absl::StrCat("has no label ", rule.key);
    case LabelRule::Kind::kNotExists:
      return absl::StrCat("has the label ", rule.key);
  }
  return "";
}

bool Holds(const LabelRule& rule, const std::string* value) {
  switch (rule.kind) {
    case LabelRule::Kind::kIs:
      return value != nullptr && *value == rule.value;
    case LabelRule::Kind::kIsNot:
      return value == nullptr || *value != rule.value;
    case LabelRule::Kind::kExists:
      return value != nullptr;
    case LabelRule::Kind::kNotExists:
      return value == nullptr;
  }
  return false;
}

}  // namespace fsdpd
