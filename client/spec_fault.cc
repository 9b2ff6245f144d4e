#include "client/spec_fault.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

namespace fsdpd {
namespace {

// "data.tokens[1].path" -> "data.tokens[1]" -> "data.tokens" -> "data" -> "".
std::string ParentOf(const std::string& path) {
  const size_t cut = path.find_last_of(".[");
  return cut == std::string::npos ? "" : path.substr(0, cut);
}

const char* NameOf(FaultLevel level) {
  switch (level) {
    case FaultLevel::kError:
      return "error";
    case FaultLevel::kAdjust:
      return "adjusted";
    case FaultLevel::kWarn:
      return "warning";
  }
  return "error";
}

}  // namespace

SpecFault Locate(const Violation& violation, const FieldPlaces& places) {
  for (std::string path = violation.field;; path = ParentOf(path)) {
    const auto found = places.find(path);
    if (found != places.end()) return {found->second, violation};
    if (path.empty()) return {{}, violation};
  }
}

std::string Render(const SpecFault& fault) {
  const Violation& v = fault.violation;
  std::string text;
  if (!fault.place.file.empty()) absl::StrAppend(&text, fault.place.file, ":");
  if (fault.place.line > 0) absl::StrAppend(&text, fault.place.line, ":", fault.place.column, ":");
  if (!text.empty()) text += " ";
  absl::StrAppend(&text, NameOf(v.level), ": ");
  if (!v.field.empty() && !absl::StrContains(v.reason, v.field)) absl::StrAppend(&text, v.field, ": ");
  text += v.reason;
  if (v.level == FaultLevel::kAdjust) absl::StrAppend(&text, " (", v.before, " -> ", v.after, ")");
  if (!v.fix.empty()) absl::StrAppend(&text, absl::EndsWith(text, ".") ? " " : "; ", v.fix);
  if (!v.rule.empty()) absl::StrAppend(&text, " [", v.rule, "]");
  return text;
}

}  // namespace fsdpd
