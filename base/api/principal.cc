#include "base/api/principal.h"

#include <absl/strings/ascii.h>

#include <algorithm>

namespace fsdpd {
namespace {

// Shorter than a token, so that a token in the place of a project is rejected.
constexpr size_t kMaxProject = 40;
constexpr size_t kMaxName = 64;

bool IsNameChar(char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '@' || c == '-'; }

}  // namespace

const char* NameOf(PrincipalRole role) {
  switch (role) {
    case PrincipalRole::kViewer:
      return "viewer";
    case PrincipalRole::kSubmitter:
      return "submitter";
    case PrincipalRole::kOperator:
      return "operator";
    case PrincipalRole::kAdmin:
      return "admin";
  }
  return "";
}

std::optional<PrincipalRole> RoleNamed(absl::string_view name) {
  for (const PrincipalRole role : kPrincipalRoles) {
    if (name == NameOf(role)) return role;
  }
  return std::nullopt;
}

absl::Status CheckPrincipalName(absl::string_view name) {
  if (!name.empty() && name.size() <= kMaxName && std::all_of(name.begin(), name.end(), IsNameChar)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("a name is 1 to 64 letters, digits, '.', '_', '@' and '-'");
}

absl::Status CheckProjectName(absl::string_view name) {
  const auto is_project_char = [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '.' || c == '-';
  };
  if (!name.empty() && name.size() <= kMaxProject && std::all_of(name.begin(), name.end(), is_project_char))
    return absl::OkStatus();
  return absl::InvalidArgumentError("a project is 1 to 40 lower-case letters, digits, '.' and '-'");
}

}  // namespace fsdpd
