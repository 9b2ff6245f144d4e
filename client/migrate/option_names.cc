#include "client/migrate/option_names.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include "client/migrate/option_tables.h"

namespace fsdpd {
namespace {

const std::map<std::string, OptionName>& Aliases() {
  static const auto* aliases = [] {
    auto* made = new std::map<std::string, OptionName>;
    for (const absl::string_view word :
         absl::StrSplit(kMegatronAliases, absl::ByAnyChar(" \n"), absl::SkipEmpty())) {
      std::pair<std::string, std::string> names = absl::StrSplit(word, absl::MaxSplits('=', 1));
      absl::string_view name = names.second;
      const bool negated = absl::ConsumePrefix(&name, "!");
      (*made)[names.first] = {std::string(name), negated};
    }
    return made;
  }();
  return *aliases;
}

std::string CanonicalName(const std::string& written) {
  const std::pair<std::string, std::string> key = absl::StrSplit(written, absl::MaxSplits('.', 1));
  return absl::StrContains(written, '.') ? NameOfKey(key.first, key.second).name : NameOfFlag(written).name;
}

// Reads "rope_theta=rotary_base:10000".
FieldRow ReadFieldRow(absl::string_view parent, absl::string_view word) {
  FieldRow row;
  std::pair<std::string, absl::string_view> sides = absl::StrSplit(word, absl::MaxSplits('=', 1));
  row.parent = std::string(parent);
  row.name = sides.first;
  row.path = absl::StrCat(parent, ".", row.name);
  absl::string_view settings = sides.second;
  if (absl::ConsumeSuffix(&settings, "!")) row.source = FieldRow::Source::kRequired;
  if (absl::ConsumeSuffix(&settings, "?")) row.source = FieldRow::Source::kIfSet;
  if (const size_t colon = settings.find(':'); colon != absl::string_view::npos) {
    row.source = FieldRow::Source::kDefault;
    row.default_value = std::string(settings.substr(colon + 1));
    settings = settings.substr(0, colon);
  }
  row.settings = absl::StrSplit(settings, ',');
  return row;
}

std::string Unchanged(const std::string& name) { return name; }

// Reads a table; option_tables.h describes its text. `canonical` returns the canonical name of a setting.
OptionTable ReadTable(absl::string_view text, std::string (*canonical)(const std::string&)) {
  OptionTable table;
  std::string kind, detail;  // Of the line's group: "refused", "hybrid models".
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] != ' ') {
      const std::pair<absl::string_view, absl::string_view> sides =
          absl::StrSplit(line, absl::MaxSplits(": ", 1));
      const std::pair<std::string, std::string> head = absl::StrSplit(sides.first, absl::MaxSplits(' ', 1));
      std::tie(kind, detail) = head;
      line = sides.second;
    }
    for (const absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
      if (kind == "field") {
        table.fields.push_back(ReadFieldRow(detail, word));
        table.known.insert(table.fields.back().settings.begin(), table.fields.back().settings.end());
        continue;
      }
      const std::pair<std::string, std::string> setting = absl::StrSplit(word, absl::MaxSplits('=', 1));
      const std::string name = canonical(setting.first);
      if (kind == "ignored") table.ignored[name] = true;
      if (kind == "refused") table.refused[name] = {setting.second, detail};
      if (kind == "launcher") {
        table.launcher[name] = true;
      } else if (!absl::EndsWith(word, "*")) {
        table.known.insert(name);
      }
    }
  }
  return table;
}

}  // namespace

OptionName NameOfFlag(const std::string& written) {
  const auto alias = Aliases().find(written);
  if (alias != Aliases().end()) return alias->second;
  for (const absl::string_view no : {"no_", "disable_"}) {
    if (!absl::StartsWith(written, no)) continue;
    OptionName name = NameOfFlag(written.substr(no.size()));
    name.negated = !name.negated;
    return name;
  }
  return {written};
}

OptionName NameOfKey(const std::string& section, const std::string& key) {
  for (const char* own : {"tokenizer", "nvrx_straggler", "inprocess_restart", "tensor_inspect", "peft"}) {
    if (section != own) continue;
    return {absl::StartsWith(key, absl::StrCat(section, "_")) ? key : absl::StrCat(section, "_", key)};
  }
  const auto alias = Aliases().find(key);
  return alias != Aliases().end() ? alias->second : OptionName{key};
}

const OptionTable& TableOf(Trainer trainer) {
  static const auto* tables = new std::map<Trainer, OptionTable>{
      {Trainer::kMegatron, ReadTable(kMegatronTable, CanonicalName)},
      {Trainer::kTorchtitan, ReadTable(kTorchtitanTable, Unchanged)},
      {Trainer::kDeepSpeed, ReadTable(kDeepSpeedTable, Unchanged)},
      {Trainer::kAccelerate, ReadTable(kAccelerateTable, Unchanged)},
  };
  return tables->at(trainer);
}

}  // namespace fsdpd
