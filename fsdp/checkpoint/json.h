// JSON that comes with a checkpoint: read strictly, as RFC 8259 has it, with bounds on bytes, values and
// depth, since it may be damaged or hostile. A key that is there twice is refused: readers differ in which
// one they take.
//
// Why not protobuf's Struct: it takes more than JSON, numbers only as doubles, and its map cannot be looked
// into by code that ThreadSanitizer instruments (its header then has another layout than the library).
//
// Pure. Errors: DATA_LOSS with the byte and what is wrong there.
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
  std::string text;               // kText: in UTF-8. kNumber: as it is written. kFlag: "true" or "false".
  std::vector<JsonValue> items;   // kList, and kObject: of each key.
  std::vector<std::string> keys;  // kObject, in the order of the text.

  const JsonValue* Find(absl::string_view key) const;  // Null when there is none, or this is no object.
};

absl::StatusOr<JsonValue> ParseJson(absl::string_view text, const JsonLimits& limits = {});

}  // namespace fsdpd
