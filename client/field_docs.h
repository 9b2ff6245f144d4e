// The protos' own comments on fields and error reasons, from descriptors that are built into the program.
//
// Paths are those of a spec, "train.micro_batch"; after "job" or "node" those of what -o json prints. Case is
// ignored.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace fsdpd {

struct FieldDoc {
  std::string name;
  std::string type;     // "integer", "list of Variable", "one of tiny, ..."
  std::string comment;  // One paragraph a line.
};

struct Explained {
  FieldDoc field;                // `name` is the whole path, or "spec".
  std::string message;           // What the comment of its message says; empty where it is none.
  std::vector<FieldDoc> fields;  // Of its message.
  std::vector<FieldDoc> values;  // Of its enum.
};

// NOT_FOUND with the nearest name. "" is the spec itself.
absl::StatusOr<Explained> ExplainField(const std::string& path);

// Every reason that errors of the API have in brackets: NODE_NOT_IDLE, with its comment in reason.proto.
std::vector<FieldDoc> ErrorReasons();

}  // namespace fsdpd
