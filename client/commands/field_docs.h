// Documentation of fields and error ids for `explain`: the comments of the protos, from descriptors that
// are embedded in the binary.
//
// A path names a field of a spec ("train.micro_batch"), or, after "job" or "node", a field of -o json. Case
// is ignored.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace fsdpd {

struct FieldDoc {
  std::string name;
  std::string type;     // "integer", "list of Variable", "one of tiny, ..."
  std::string comment;  // One line per paragraph.
};

struct Explained {
  FieldDoc field;                // `name` is the complete path, or "spec".
  std::string message;           // Comment of the field's message type; empty for scalars.
  std::vector<FieldDoc> fields;  // Fields of the message type.
  std::vector<FieldDoc> values;  // Values of the enum type.
};

// Returns NOT_FOUND with the most similar name for an unknown path. "" is the spec itself.
absl::StatusOr<Explained> ExplainField(const std::string& path);

// Paths of the spec's fields that end with `name`: "train.lora" for "lora". Case is ignored.
std::vector<std::string> PathsTo(const std::string& name);

// All error ids (reason.proto), such as NODE_NOT_IDLE, and all causes of a failed attempt (FailureCause),
// such as HANG. Their comments have the meaning, and a line "Fix: ...".
std::vector<FieldDoc> ErrorIds();

}  // namespace fsdpd
