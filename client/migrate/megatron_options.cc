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

}  // namespace

OptionKind KindOf(const Setting& setting) {
  const absl::string_view* harmless = Best(setting.name, kWithoutEffect);
  const NotSupported* refused = Best(setting.name, kNotSupported);
  if (refused != nullptr && (harmless == nullptr || refused->name.size() > harmless->size())) {
    return IsUsual(setting, refused->usual) ? OptionKind::kWithoutEffect : OptionKind::kNotSupported;
  }
  if (harmless != nullptr) return OptionKind::kWithoutEffect;
  return Best(setting.name, kOfLaunchers) != nullptr ? OptionKind::kOfLauncher : OptionKind::kUnknown;
}

absl::string_view MeaningOf(const Setting& setting) {
  const NotSupported* refused = Best(setting.name, kNotSupported);
  return refused == nullptr ? "" : refused->what;
}

std::string MeantOption(const Setting& setting, const std::set<std::string>& read) {
  std::vector<std::string> names(read.begin(), read.end());
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
