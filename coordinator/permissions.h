// Who may call what: one row for each method of the public API. A method without a row is for admins alone,
// and permissions_test fails until it has one.
#pragma once

#include <absl/strings/string_view.h>

#include "base/principal.h"

namespace fsdpd {

struct Permission {
  const char* method;  // As in coordinator.proto: "CancelJob".
  PrincipalRole role;  // That is needed.
  PrincipalRole own;   // That is needed where the job in the request's `id` was submitted by the caller.
  bool changes;        // Something other than an answer comes of it: the call is put on record.
};

const Permission& PermissionOf(absl::string_view method);

// Has `method` a row of its own?
bool IsListed(absl::string_view method);

}  // namespace fsdpd
