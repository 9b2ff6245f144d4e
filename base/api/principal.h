// Users as a coordinator knows them: a name, a role and a project, as in a token file.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include <optional>
#include <string>

namespace fsdpd {

// Each role includes the permissions of those before it.
enum class PrincipalRole {
  kViewer,     // Views jobs, nodes and logs.
  kSubmitter,  // Runs jobs, and stops its own jobs.
  kOperator,   // Stops all jobs, and cordons and drains nodes.
  kAdmin,      // Everything.
};

constexpr PrincipalRole kPrincipalRoles[] = {PrincipalRole::kViewer, PrincipalRole::kSubmitter,
                                             PrincipalRole::kOperator, PrincipalRole::kAdmin};

const char* NameOf(PrincipalRole role);
std::optional<PrincipalRole> RoleNamed(absl::string_view name);

struct Principal {
  std::string name;
  PrincipalRole role = PrincipalRole::kViewer;
  std::string project = {};  // Project whose quota its jobs count against; empty: none.
};

// Checks a name that is safe in logs and files: 1-64 letters, digits, '.', '_', '@' and '-'.
absl::Status CheckPrincipalName(absl::string_view name);
// Checks a project name: 1-40 lower-case letters, digits, '.' and '-'.
absl::Status CheckProjectName(absl::string_view name);

}  // namespace fsdpd
