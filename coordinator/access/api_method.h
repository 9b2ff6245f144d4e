// Properties of a public API method, from its row of base/api/api_table.h. A method without a row is not
// served.
#pragma once

#include <absl/strings/string_view.h>

#include <optional>

#include "base/api/principal.h"
#include "coordinator/access/reader_streams.h"

namespace fsdpd {

struct ApiMethod {
  const char* name;  // As in coordinator.proto: "CancelJob".
  bool streams;
  PrincipalRole role;
  PrincipalRole own;
  bool changes;
  std::optional<ReaderKind> reader;  // nullopt: the call does not wait.
};

const ApiMethod* FindApiMethod(absl::string_view name);  // Null if unknown.

}  // namespace fsdpd
