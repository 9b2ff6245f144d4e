// Table of the roles that public API methods require, one row per method. A method without a row is for
// admins only, and permissions_test fails until it has one.
#pragma once

#include <absl/strings/string_view.h>

#include "base/api/principal.h"

namespace fsdpd {

struct Permission {
  const char* method;  // As in coordinator.proto: "CancelJob".
  PrincipalRole role;  // The required role.
  PrincipalRole own;   // The required role if the caller submitted the job in the request's `id`.
  bool changes;        // The call has side effects and is written to the audit log.
};

const Permission& PermissionOf(absl::string_view method);

// Whether `method` has its own row.
bool IsListed(absl::string_view method);

}  // namespace fsdpd
