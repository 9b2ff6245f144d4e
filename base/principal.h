// Who people are to a coordinator: a name and a role, as a token file has them and a client writes them.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include <optional>
#include <string>

namespace fsdpd {

// Each may do what those before it may.
enum class PrincipalRole {
  kViewer,     // Sees jobs, nodes and logs.
  kSubmitter,  // Runs jobs, and ends those that are its own.
  kOperator,   // Ends anybody's, and says which nodes take jobs.
  kAdmin,      // Everything.
};

constexpr PrincipalRole kPrincipalRoles[] = {PrincipalRole::kViewer, PrincipalRole::kSubmitter,
                                             PrincipalRole::kOperator, PrincipalRole::kAdmin};

const char* NameOf(PrincipalRole role);
std::optional<PrincipalRole> RoleNamed(absl::string_view name);

struct Principal {
  std::string name;
  PrincipalRole role = PrincipalRole::kViewer;
  std::string project = {};  // Whose quota its jobs count against; empty for none.
};

// A word that is safe in logs and files: 1-64 letters, digits, '.', '_', '@' and '-'.
absl::Status CheckPrincipalName(absl::string_view name);
// A project's: 1-40 lower-case letters, digits, '.' and '-'.
absl::Status CheckProjectName(absl::string_view name);

}  // namespace fsdpd
