#include "base/spec_text/renamed_fields.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/strip.h>

#include <utility>

namespace fsdpd {
namespace {

// "ignoredToken" and "ignored_token" -> "ignoredtoken".
std::string Normalized(absl::string_view key) {
  return absl::AsciiStrToLower(absl::StrReplaceAll(key, {{"_", ""}}));
}

}  // namespace

const std::vector<RenamedField>& RenamedFields() {
  static const auto* const fields = new std::vector<RenamedField>{
      {"Data", "ignored_token", "ignore_index"},
      {"InitialValues", "deviation", "std"},
      {"InitialValues", "embedding_deviation", "embedding_std"},
      {"Plugin.Unit", "borrows", "tied_to"},
      {"Plugin.Unit", "kept_values", "saved_values"},
      {"Plugin.Unit", "kept_values_selective", "saved_values_selective"},
  };
  return *fields;
}

std::string CurrentFieldName(absl::string_view message, absl::string_view key) {
  message = absl::StripPrefix(message, "fsdpd.v1.");
  for (const RenamedField& field : RenamedFields()) {
    if (field.message == message && Normalized(field.before) == Normalized(key)) return field.name;
  }
  return "";
}

std::string WithCurrentFieldNames(const std::string& json) {
  std::vector<std::pair<std::string, std::string>> keys;
  // A quote within a string is escaped, so this pattern matches only keys.
  for (const RenamedField& field : RenamedFields())
    keys.emplace_back(absl::StrCat("\"", field.before, "\":"), absl::StrCat("\"", field.name, "\":"));
  return absl::StrReplaceAll(json, keys);
}

}  // namespace fsdpd
