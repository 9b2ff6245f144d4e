// Command `explain`: documentation of fields and error ids, from the comments of the protos, and of
// validation rules, from their tables.
#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <map>

#include "base/spec_text/located_violation.h"
#include "base/text.h"
#include "client/commands/commands.h"
#include "client/commands/field_docs.h"
#include "client/connect/outcome.h"
#include "client/migrate/conversion_rules.h"
#include "client/migrate/megatron_rules.h"
#include "client/spec/text_rules.h"
#include "client/text/text_table.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

constexpr int kMaxWidth = 100;  // Longer lines are hard to read.
constexpr size_t kMaxPaths = 5;

// Wraps each paragraph to lines of `width` columns that start with `indent` blanks.
std::string Wrapped(const std::string& text, int indent, int width) {
  const std::string blanks(static_cast<size_t>(indent), ' ');
  std::string wrapped;
  for (const absl::string_view paragraph : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    std::string line = blanks;
    for (const absl::string_view word : absl::StrSplit(paragraph, ' ', absl::SkipEmpty())) {
      const bool first = line.size() == blanks.size();
      if (!first && WidthOf(line) + 1 + WidthOf(word) > width) {
        absl::StrAppend(&wrapped, line, "\n");
        line = absl::StrCat(blanks, word);
      } else {
        absl::StrAppend(&line, first ? "" : " ", word);
      }
    }
    absl::StrAppend(&wrapped, line, "\n");
  }
  return wrapped;
}

std::string List(const char* title, const std::vector<FieldDoc>& docs, int width) {
  if (docs.empty()) return "";
  std::string text = absl::StrCat("\n", title, ":\n");
  for (const FieldDoc& doc : docs) {
    absl::StrAppend(&text, "  ", doc.name, doc.type.empty() ? "" : absl::StrCat("  <", doc.type, ">"), "\n",
                    Wrapped(doc.comment, 4, width));
  }
  return text;
}

// All rules whose ids can be printed in brackets: those of a spec's text, of specs, and of `migrate`, which
// have no field.
std::vector<RuleText> AllPrintedRules() {
  std::vector<RuleText> each = TextRules();
  const std::vector<RuleText> of_specs = AllRules();
  each.insert(each.end(), of_specs.begin(), of_specs.end());
  for (const std::vector<MigrateRule>& of_runs : {MegatronRules(), ConversionRules()}) {
    for (const MigrateRule& rule : of_runs) each.push_back({rule.id, rule.text, rule.level, ""});
  }
  return each;
}

// Text of the rules with this id, ignoring case; "" if absent. Specs and `migrate` may both have a
// rule of one id, such as lr_positive.
std::string ExplainRule(const std::string& name, int width) {
  std::string text;
  for (const RuleText& rule : AllPrintedRules()) {
    if (!absl::EqualsIgnoreCase(rule.id, name)) continue;
    const char* const kind = rule.level == ViolationLevel::kWarn ? "a warning"
                             : rule.level == ViolationLevel::kAdjust
                                 ? "an adjustment; the job runs with another value"
                                 : "an error; the job is rejected";
    absl::StrAppend(
        &text, rule.id, "  <rule>\n", Wrapped(absl::StrCat("Rule: ", rule.text), 2, width),
        Wrapped(rule.field.empty() ? "Reported by: fsdpctl migrate" : absl::StrCat("Field: ", rule.field), 2,
                width),
        Wrapped(absl::StrCat("If violated: ", kind), 2, width));
  }
  return text;
}

// The rules of a field and of its fields. They may reject some of the values that the field's type allows.
std::vector<FieldDoc> RulesOf(const std::string& field) {
  std::vector<FieldDoc> rules;
  for (const RuleText& rule : AllPrintedRules()) {
    absl::string_view below = rule.field;
    const bool in_field = absl::ConsumePrefix(&below, field + ".") && !absl::StrContains(below, '.');
    if ((rule.field == field || in_field) && rule.level == ViolationLevel::kError)
      rules.push_back({rule.id, "", rule.text});
  }
  return rules;
}

// Finds a field by the end of its path, such as train.lora by "lora". Returns `unknown` if no field matches,
// and an error if several do.
absl::StatusOr<Explained> FieldByEnd(const std::string& name, const absl::Status& unknown) {
  std::vector<std::string> paths = PathsTo(name);
  if (paths.empty()) return unknown;
  if (paths.size() == 1) return ExplainField(paths[0]);
  paths.resize(std::min(paths.size(), kMaxPaths));
  return absl::NotFoundError(
      absl::StrCat("unknown field ", name, "; did you mean ", absl::StrJoin(paths, ", "), "?"));
}

// Text of an error id; "" if absent. Case and the prefix REASON_ are ignored.
std::string ExplainErrorId(const std::string& name, int width) {
  for (const FieldDoc& id : ErrorIds()) {
    if (absl::EqualsIgnoreCase(id.name, name) ||
        absl::EqualsIgnoreCase(absl::StrCat("REASON_", id.name), name))
      return absl::StrCat(id.name, "  <", id.type, ">\n", Wrapped(id.comment, 2, width));
  }
  return "";
}

// "; did you mean ...?" if the name of a rule or an error id is similar; "" otherwise.
std::string NearRule(const std::string& name) {
  std::map<std::string, std::string> names;  // Keys are in lower case.
  for (const RuleText& rule : AllPrintedRules()) names[rule.id] = rule.id;
  for (const FieldDoc& id : ErrorIds()) names[absl::AsciiStrToLower(id.name)] = id.name;
  std::vector<std::string> lower;
  for (const auto& [key, unused] : names) lower.push_back(key);
  const std::string nearest = Nearest(absl::AsciiStrToLower(name), lower);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", names[nearest], "?");
}

// The current name of an error id that was renamed after release 0.1, as in docs/upgrade.md; "" otherwise.
std::string CurrentErrorId(const std::string& name) {
  static const auto* const kRenamed = new std::map<std::string, std::string>{
      {"BAD_SPEC", "INVALID_SPEC"},
      {"BAD_REQUEST", "INVALID_REQUEST"},
      {"COURSE_NOT_FOUND", "STEP_TIMELINE_NOT_FOUND"},
      {"NO_TOKEN", "MISSING_TOKEN"},
      {"ROLE_NEEDED", "ROLE_REQUIRED"},
      {"NO_CERTIFICATE", "MISSING_CERTIFICATE"},
      {"WRONG_NODE", "NODE_NAME_MISMATCH"},
      {"OTHER_PROJECT", "PROJECT_NOT_ALLOWED"},
      {"JOB_NOT_STEPPING", "JOB_HAS_NO_STEPS"},
      {"JOB_ENDS_BEFORE", "JOB_ENDS_TOO_SOON"},
      {"FOLDER_TAKEN", "DIRECTORY_IN_USE"},
      {"JOB_AWAITED", "JOB_HAS_DEPENDENTS"},
      {"EVENTS_GONE", "EVENTS_EXPIRED"},
  };
  const auto found = kRenamed->find(absl::AsciiStrToUpper(name));
  return found == kRenamed->end() ? "" : found->second;
}

}  // namespace

int RunExplain(const CommandLine& line, Console* console) {
  absl::StatusOr<Explained> found = ExplainField(line.field);
  const int terminal = console->width();
  const int width = terminal > 0 ? std::min(terminal, kMaxWidth) : kMaxWidth;
  std::string rule = ExplainRule(line.field, width);
  // OUT_OF_RANGE is an error id, and out_of_range a rule. DATA is a failure cause, and data a field.
  const bool is_upper = line.field == absl::AsciiStrToUpper(line.field);
  if (const std::string id = ExplainErrorId(line.field, width);
      !id.empty() && (is_upper || (rule.empty() && !found.ok())))
    rule = id;
  if (!found.ok() && !rule.empty()) {
    console->out << rule;
    return kExitOk;
  }
  if (!found.ok()) found = FieldByEnd(line.field, absl::Status(found.status()));
  if (!found.ok()) {
    std::string message(found.status().message());
    if (const std::string current = CurrentErrorId(line.field); !current.empty())
      message = absl::StrCat("unknown error id ", line.field, "; renamed to ", current);
    const bool has_hint =
        absl::StrContains(message, "did you mean") || absl::StrContains(message, "; renamed to ");
    console->err << "fsdpctl: " << Escaped(has_hint ? message : message + NearRule(line.field))
                 << " [INVALID_FLAG]\n";
    return kExitUsage;
  }
  console->out << found->field.name << "  <" << found->field.type << ">\n"
               << Wrapped(found->field.comment, 2, width) << Wrapped(found->message, 2, width)
               << List("fields", found->fields, width) << List("values", found->values, width)
               << List("rules", RulesOf(found->field.name), width) << (rule.empty() ? "" : "\n")
               << rule;  // Some rules have the name of a field, such as `schedule`.
  if (line.field.empty())
    console->out << "\n`fsdpctl explain ID` explains the id in brackets at the end of an error.\n";
  return kExitOk;
}

}  // namespace fsdpd
