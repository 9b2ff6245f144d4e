#include "client/migrate/field_origins.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

#include <algorithm>

#include "client/migrate/option_names.h"
#include "client/migrate/shell_words.h"

namespace fsdpd {
namespace {

// True for rules whose violation leaves the field unset. The field's own rules would report it again.
bool LeavesFieldUnset(const std::string& rule) {
  for (const char* each :
       {"required", "lr_positive", "no_value", "not_a_number", "not_a_whole_number", kShellVariable}) {
    if (rule == each) return true;
  }
  return false;
}

}  // namespace

const Setting* OriginOf(const std::string& field, Settings* settings) {
  const auto written = [&](const auto& matches) -> const Setting* {
    for (const FieldRow& row : settings->table().fields) {
      if (!matches(row.path)) continue;
      for (const std::string& name : row.settings) {
        if (const Setting* setting = settings->Find(name); setting != nullptr) return setting;
      }
    }
    return nullptr;
  };
  const Setting* setting = written([&](const std::string& origin) { return IsWithin(field, origin); });
  return setting != nullptr ? setting
                            : written([&](const std::string& origin) { return IsWithin(origin, field); });
}

LocatedViolation AtOrigin(const Violation& violation, const std::string& file, Settings* settings) {
  LocatedViolation located{{file, 0, 0}, violation};
  const Setting* setting = OriginOf(violation.field, settings);
  if (setting == nullptr) return located;
  located.place = setting->place;
  located.violation.field = setting->written;
  located.violation.reason = absl::StrCat("becomes ", violation.field, ": ", violation.reason);
  return located;
}

std::vector<std::string> UnreadFields(const LocatedViolations& violations) {
  std::vector<std::string> unread;
  for (const LocatedViolation& located : violations) {
    if (!LeavesFieldUnset(located.violation.rule)) continue;
    const std::string& written = located.violation.field;
    std::string name = absl::StrReplaceAll(written, {{"--", ""}, {"-", "_"}});
    name = NameOfFlag(name.substr(name.rfind('.') + 1)).name;
    for (const Trainer trainer : kTrainers) {
      for (const FieldRow& row : TableOf(trainer).fields) {
        const std::string& of_trainer = trainer == Trainer::kMegatron ? name : written;
        if (std::count(row.settings.begin(), row.settings.end(), of_trainer) > 0) unread.push_back(row.path);
      }
    }
  }
  return unread;
}

}  // namespace fsdpd
