// A message as people write it: the inverse of spec_text.h. YAML in blocks, or JSON; enums by short name,
// sizes as plain numbers, unset fields left out, fields ordered by number. Any message of this project can be
// printed.
#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace fsdpd {

std::string ToYaml(const google::protobuf::Message& message);  // Ends with a newline.
std::string ToJson(const google::protobuf::Message& message);  // Indented by two; ends with a newline.

// The short lower-case name of an enum value: "optim_grads_params", "queued". "auto" for the zero value.
std::string ShortEnumName(const google::protobuf::EnumValueDescriptor& value);

}  // namespace fsdpd
