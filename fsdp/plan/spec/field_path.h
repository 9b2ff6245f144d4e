// Fields of a job spec by path, such as "fsdp.outer.size", for tables of fields. Fields of list elements are
// not supported.
#pragma once

#include <absl/strings/string_view.h>
#include <google/protobuf/message.h>

#include <string>

namespace fsdpd {

struct FieldAt {
  const google::protobuf::Message* parent = nullptr;  // Null: a message on the path is not set.
  const google::protobuf::FieldDescriptor* field = nullptr;

  bool is_set() const { return parent != nullptr && parent->GetReflection()->HasField(*parent, field); }
};

// REQUIRES: the fields on the path exist.
FieldAt FindField(const google::protobuf::Message& root, absl::string_view path);

// Sets a number, bool, enum (by its short name) or string from text. Adds the messages on the path.
void SetField(google::protobuf::Message* root, absl::string_view path, const std::string& value);

// The same, unless the field is set already or a message on the path is not set. Returns whether it was set.
bool SetIfUnset(google::protobuf::Message* root, absl::string_view path, const std::string& value);

}  // namespace fsdpd
