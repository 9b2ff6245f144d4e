#include "client/migrate/megatron_options.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <vector>

#include "base/text.h"

namespace fsdpd {
namespace {

bool IsSame(const std::string& value, absl::string_view default_value) {
  double number = 0, other = 0;
  if (absl::SimpleAtod(value, &number) && absl::SimpleAtod(default_value, &other)) return number == other;
  return absl::EqualsIgnoreCase(value, default_value);
}

// The names may differ by this many consecutive letters: wrong, missing or extra.
constexpr size_t kMaxMisspelledLetters = 3;

// Megatron Bridge writes every setting into run_config.yaml, most of them with their default.
bool IsDefault(const Setting& setting, absl::string_view default_value) {
  if (setting.values.empty()) return default_value == "true";
  if (setting.values.size() != 1) return false;
  const std::string& value = setting.values.front();
  for (const char* none : {"", "None", "null"}) {
    if (absl::EqualsIgnoreCase(value, none)) return true;
  }
  if (!default_value.empty()) return IsSame(value, default_value);
  return absl::EqualsIgnoreCase(value, "false") || IsSame(value, "0");
}

// For a name that matches only a prefix entry such as "fp8_*": returns true if it misspells a known name.
// False if the name is known itself, or close to none.
bool IsMisspelled(const std::string& name, const std::set<std::string>& known) {
  if (known.count(name) > 0) return false;
  const std::string nearest = Nearest(name, {known.begin(), known.end()});
  // Names that differ in a whole word are different options: mlflow_run_id is not mlflow_run_name.
  const size_t shorter = std::min(name.size(), nearest.size());
  size_t first = 0, last = 0;
  while (first < shorter && name[first] == nearest[first]) ++first;
  while (last < shorter - first && name[name.size() - 1 - last] == nearest[nearest.size() - 1 - last]) ++last;
  return !nearest.empty() && std::max(name.size(), nearest.size()) - first - last <= kMaxMisspelledLetters;
}

}  // namespace

OptionKind KindOf(const Setting& setting, const OptionTable& table) {
  const auto ignored = FindLongestMatch(setting.name, table.ignored);
  const auto refused = FindLongestMatch(setting.name, table.refused);
  const bool is_ignored = ignored != table.ignored.end();
  if (refused != table.refused.end() && (!is_ignored || refused->first.size() > ignored->first.size())) {
    return IsDefault(setting, refused->second.default_value) ? OptionKind::kWithoutEffect
                                                             : OptionKind::kNotSupported;
  }
  if (is_ignored) {
    const bool misspelled = absl::EndsWith(ignored->first, "*") && IsMisspelled(setting.name, table.known);
    return misspelled ? OptionKind::kUnknown : OptionKind::kWithoutEffect;
  }
  return FindLongestMatch(setting.name, table.launcher) != table.launcher.end() ? OptionKind::kOfLauncher
                                                                                : OptionKind::kUnknown;
}

std::string DescribeUnsupported(const Setting& setting, const OptionTable& table) {
  const auto refused = FindLongestMatch(setting.name, table.refused);
  if (refused == table.refused.end()) return "";
  const std::string& feature = refused->second.feature;
  return absl::StrCat(feature, feature.back() == ')' ? ": " : " is ", "not supported");
}

std::string SuggestOption(const Setting& setting, const std::set<std::string>& read,
                          const OptionTable& table) {
  std::set<std::string> known = table.known;
  known.insert(read.begin(), read.end());
  const std::string nearest = Nearest(setting.name, {known.begin(), known.end()});
  if (nearest == setting.name || !absl::StartsWith(setting.written, "--") || nearest.empty())
    return nearest == setting.name ? "" : nearest;
  return absl::StrCat("--", absl::StrReplaceAll(nearest, {{"_", "-"}}));
}

}  // namespace fsdpd
