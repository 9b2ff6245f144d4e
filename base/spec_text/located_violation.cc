#include "base/spec_text/located_violation.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>

namespace fsdpd {
namespace {

// "data.tokens[1].path" -> "data.tokens[1]" -> "data.tokens" -> "data" -> "".
std::string ParentOf(const std::string& path) {
  const size_t cut = path.find_last_of(".[");
  return cut == std::string::npos ? "" : path.substr(0, cut);
}

const char* NameOf(ViolationLevel level) {
  switch (level) {
    case ViolationLevel::kError:
      return "error";
    case ViolationLevel::kAdjust:
      return "adjusted";
    case ViolationLevel::kWarn:
      return "warning";
  }
  return "error";
}

// Longer than names and most paths.
constexpr size_t kMaxWordBytes = 300, kShownBytes = 80;

std::string WithoutLongWords(const std::string& text) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (end - begin <= kMaxWordBytes) {
      out += text.substr(begin, end - begin);
    } else {
      size_t shown = kShownBytes;
      // At a character boundary.
      while ((static_cast<unsigned char>(text[begin + shown]) & 0xC0) == 0x80) --shown;
      absl::StrAppend(&out, text.substr(begin, shown), "... (", end - begin, " bytes)");
    }
    if (end < text.size()) out += ' ';
    begin = end + 1;
  }
  return out;
}

}  // namespace

LocatedViolation Locate(const Violation& violation, const FieldPlaces& places) {
  for (std::string path = violation.field;; path = ParentOf(path)) {
    const auto found = places.find(path);
    if (found != places.end()) return {found->second, violation};
    if (path.empty()) return {{}, violation};
  }
}

bool HasErrors(const LocatedViolations& violations) {
  return std::any_of(violations.begin(), violations.end(), [](const LocatedViolation& located) {
    return located.violation.level == ViolationLevel::kError;
  });
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F (C1), which terminals interpret like C0, are encoded as C2 80 to C2 9F.
    const bool c1 =
        c == 0xC2 && i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xE0) == 0x80;
    if (c == '\n') {
      out += "\\n";
    } else if (c1) {
      absl::StrAppend(&out, absl::StrFormat("\\u%04x", static_cast<unsigned char>(text[++i])));
    } else if (c < 0x20 || c == 0x7F) {
      absl::StrAppend(&out, absl::StrFormat("\\x%02x", c));
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string Render(const LocatedViolation& located) {
  const Violation& v = located.violation;
  std::string text;
  if (!located.place.file.empty()) absl::StrAppend(&text, located.place.file, ":");
  if (located.place.line > 0) absl::StrAppend(&text, located.place.line, ":", located.place.column, ":");
  if (!text.empty()) text += " ";
  absl::StrAppend(&text, NameOf(v.level), ": ");
  if (!located.place.name.empty()) absl::StrAppend(&text, located.place.name, ", here ");
  if (!v.field.empty() && !absl::StrContains(v.reason, v.field)) absl::StrAppend(&text, v.field, ": ");
  text += v.reason;
  if (v.level == ViolationLevel::kAdjust) absl::StrAppend(&text, " (", v.before, " -> ", v.after, ")");
  if (!v.fix.empty()) absl::StrAppend(&text, absl::EndsWith(text, ".") ? " " : "; ", v.fix);
  if (!v.rule.empty()) absl::StrAppend(&text, " [", v.rule, "]");
  return WithoutLongWords(Escaped(text));
}

}  // namespace fsdpd
