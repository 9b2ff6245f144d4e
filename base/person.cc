#include "base/person.h"

#include <absl/strings/ascii.h>

#include <algorithm>

namespace fsdpd {
namespace {

constexpr size_t kMaxName = 64;

bool MayStandInName(char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '@' || c == '-'; }

}  // namespace

const char* NameOf(PersonRole role) {
  switch (role) {
    case PersonRole::kViewer:
      return "viewer";
    case PersonRole::kSubmitter:
      return "submitter";
    case PersonRole::kOperator:
      return "operator";
    case PersonRole::kAdmin:
      return "admin";
  }
  return "";
}

std::optional<PersonRole> RoleNamed(absl::string_view name) {
  for (const PersonRole role : kPersonRoles) {
    if (name == NameOf(role)) return role;
  }
  return std::nullopt;
}

absl::Status CheckPersonName(absl::string_view name) {
  if (!name.empty() && name.size() <= kMaxName && std::all_of(name.begin(), name.end(), MayStandInName)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("a name is 1 to 64 letters, digits, '.', '_', '@' and '-'");
}

}  // namespace fsdpd
