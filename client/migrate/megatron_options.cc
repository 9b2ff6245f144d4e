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

// The entry that knows most of the name: all of it by an entry of its own, which wins over a beginning. Null
// when none does.
template <typename Entry, size_t kSize>
const Entry* Best(absl::string_view name, const Entry (&list)[kSize]) {
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

bool IsSame(const std::string& value, absl::string_view usual) {
  double number = 0, other = 0;
  if (absl::SimpleAtod(value, &number) && absl::SimpleAtod(usual, &other)) return number == other;
  return absl::EqualsIgnoreCase(value, usual);
}

constexpr size_t kMisspelt = 3;  // So many letters in a row may be wrong, missing or too many.

// Bridge writes every setting, most of them as what they are when nobody sets them.
bool IsUsual(const Setting& setting, absl::string_view usual) {
  if (setting.values.empty()) return usual == "true";
  if (setting.values.size() != 1) return false;
  const std::string& value = setting.values.front();
  for (const char* none : {"", "None", "null"}) {
    if (absl::EqualsIgnoreCase(value, none)) return true;
  }
  if (!usual.empty()) return IsSame(value, usual);
  return absl::EqualsIgnoreCase(value, "false") || IsSame(value, "0");
}

// The published name that a name, which a list knows by its beginning alone, may have been meant to be: what
// comes after fp8_ or moe_ may be misspelt as anything else. Empty when it is one, or near none.
std::string MisspeltFrom(const std::string& name) {
  const std::set<std::string>& published = PublishedNames();
  if (published.count(name) > 0) return "";
  const std::string nearest = Nearest(name, {published.begin(), published.end()});
  // Another word at its end is another option: mlflow_run_id is not mlflow_run_name.
  const size_t shorter = std::min(name.size(), nearest.size());
  size_t first = 0, last = 0;
  while (first < shorter && name[first] == nearest[first]) ++first;
  while (last < shorter - first && name[name.size() - 1 - last] == nearest[nearest.size() - 1 - last]) ++last;
  return std::max(name.size(), nearest.size()) - first - last <= kMisspelt ? nearest : "";
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
  const absl::string_view* harmless = Best(setting.name, kWithoutEffect);
  const NotSupported* refused = Best(setting.name, kNotSupported);
  if (refused != nullptr && (harmless == nullptr || refused->name.size() > harmless->size())) {
    return IsUsual(setting, refused->usual) ? OptionKind::kWithoutEffect : OptionKind::kNotSupported;
  }
  if (harmless != nullptr) {
    const bool misspelt = absl::EndsWith(*harmless, "*") && !MisspeltFrom(setting.name).empty();
    return misspelt ? OptionKind::kUnknown : OptionKind::kWithoutEffect;
  }
  return Best(setting.name, kOfLaunchers) != nullptr ? OptionKind::kOfLauncher : OptionKind::kUnknown;
}

absl::string_view MeaningOf(const Setting& setting) {
  const NotSupported* refused = Best(setting.name, kNotSupported);
  return refused == nullptr ? "" : refused->what;
}

std::string MeantOption(const Setting& setting, const std::set<std::string>& read) {
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
