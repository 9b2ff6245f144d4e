// JSON parser for files of a checkpoint, which may be corrupt or hostile: strict (RFC 8259), with bounds on
// bytes, values and depth. A duplicate key is rejected, since readers differ in which one they use.
//
// protobuf's Struct is not used because it accepts more than JSON, has numbers only as doubles, and its map
// cannot be accessed from code built with ThreadSanitizer (its header then has another layout than the
// library).
//
// Pure. Errors: DATA_LOSS with the byte and the problem.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdpd {

struct JsonLimits {
  int64_t bytes = 16 << 20;
  int64_t values = 2'000'000;
  int depth = 32;
};

struct JsonValue {
  enum class Kind { kNull, kFlag, kNumber, kText, kList, kObject };
  Kind kind = Kind::kNull;
  std::string text;               // kText: UTF-8. kNumber: as written. kFlag: "true" or "false".
  std::vector<JsonValue> items;   // kList; for kObject, by key.
  std::vector<std::string> keys;  // kObject, in the order of the text.

  const JsonValue* Find(absl::string_view key) const;  // Null if absent, or if this is not an object.
};

absl::StatusOr<JsonValue> ParseJson(absl::string_view text, const JsonLimits& limits = {});

}  // namespace fsdpd
