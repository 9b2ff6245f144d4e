#include "client/migrate/megatron_options.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "client/migrate/megatron_option_lists.h"
#include "client/migrate/megatron_option_names.h"
#include "client/migrate/option_names.h"

namespace fsdpd {
namespace {

absl::string_view NameOf(absl::string_view entry) { return entry; }
absl::string_view NameOf(const NotSupported& entry) { return entry.name; }

// Returns the entry that matches the most characters of the name: an exact entry wins over a prefix entry
// ("*"), a longer prefix over a shorter one. Null if none matches.
template <typename Entry, size_t kSize>
const Entry* FindLongestMatch(absl::string_view name, const Entry (&list)[kSize]) {
  const Entry* best = nullptr;
  size_t known = 0;
  for (const Entry& entry : list) {
    absl::string_view each = NameOf(entry);
    const bool beginning = absl::ConsumeSuffix(&each, "*");
    if (!(beginning ? absl::StartsWith(name, each) : name == each) || each.size() < known) continue;
    known = each.size();
    best = &entry;
  }
  return best;
}

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

// For a name that matches only a prefix entry such as "fp8_*": returns the published name that it misspells.
// Empty if the name is published itself, or close to none.
std::string FindIntendedName(const std::string& name) {
  const std::set<std::string>& published = PublishedNames();
  if (published.count(name) > 0) return "";
  const std::string nearest = Nearest(name, {published.begin(), published.end()});
  // Names that differ in a whole word are different options: mlflow_run_id is not mlflow_run_name.
  const size_t shorter = std::min(name.size(), nearest.size());
  size_t first = 0, last = 0;
  while (first < shorter && name[first] == nearest[first]) ++first;
  while (last < shorter - first && name[name.size() - 1 - last] == nearest[nearest.size() - 1 - last]) ++last;
  return std::max(name.size(), nearest.size()) - first - last <= kMaxMisspelledLetters ? nearest : "";
}

}  // namespace

const std::set<std::string>& PublishedNames() {
  static const auto* names = [] {
    auto* made = new std::set<std::string>;
    for (const absl::string_view name : kMegatronOptions) made->insert(NameOfFlag(std::string(name)).name);
    for (const absl::string_view name : kBridgeSettings) {
      const std::string section(name.substr(0, name.find('.')));
      made->insert(NameOfKey(section, std::string(name.substr(section.size() + 1))).name);
    }
    return made;
  }();
  return *names;
}

OptionKind KindOf(const Setting& setting) {
  const absl::string_view* harmless = FindLongestMatch(setting.name, kWithoutEffect);
  const NotSupported* refused = FindLongestMatch(setting.name, kNotSupported);
  if (refused != nullptr && (harmless == nullptr || refused->name.size() > harmless->size())) {
    return IsDefault(setting, refused->default_value) ? OptionKind::kWithoutEffect
                                                      : OptionKind::kNotSupported;
  }
  if (harmless != nullptr) {
    const bool misspelled = absl::EndsWith(*harmless, "*") && !FindIntendedName(setting.name).empty();
    return misspelled ? OptionKind::kUnknown : OptionKind::kWithoutEffect;
  }
  return FindLongestMatch(setting.name, kOfLaunchers) != nullptr ? OptionKind::kOfLauncher
                                                                 : OptionKind::kUnknown;
}

absl::string_view DescribeUnsupported(const Setting& setting) {
  const NotSupported* refused = FindLongestMatch(setting.name, kNotSupported);
  return refused == nullptr ? "" : refused->feature;
}

std::string SuggestOption(const Setting& setting, const std::set<std::string>& read) {
  std::set<std::string> known = PublishedNames();
  known.insert(read.begin(), read.end());
  std::vector<std::string> names(known.begin(), known.end());
  const auto add = [&](absl::string_view name) {
    if (!absl::EndsWith(name, "*")) names.emplace_back(name);
  };
  for (const absl::string_view name : kWithoutEffect) add(name);
  for (const NotSupported& entry : kNotSupported) add(entry.name);
  const std::string nearest = Nearest(setting.name, names);
  if (nearest.empty() || nearest == setting.name) return "";
  const bool flag = absl::StartsWith(setting.written, "--");
  return flag ? absl::StrCat("--", absl::StrReplaceAll(nearest, {{"_", "-"}})) : nearest;
}

}  // namespace fsdpd
