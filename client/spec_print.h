// A message as people write it (the inverse of spec_text.h) and as programs read it. YAML in blocks, or JSON;
// enums by short name, sizes as plain numbers, fields ordered by number. Any message of this project can be
// printed. One walk writes both forms; yaml-cpp's emitter leaves the texts "no" and "123" without quotes, so
// that they read back as something else, and writes 0.1 as 0.10000000000000001.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string>

namespace fsdpd {

// Without what is not set.
std::string ToYaml(const google::protobuf::Message& message);  // Ends with a newline.
std::string ToJson(const google::protobuf::Message& message);  // Indented by two; ends with a newline.

// For programs: a field that has a value always is there with it, zeros, empty text and empty lists too.
// Absent are messages, `optional` fields and members of a oneof that are not set. What is no number is .nan
// and .inf in YAML, "NaN" and "Infinity" in JSON.
std::string ToYamlData(const google::protobuf::Message& message);
std::string ToJsonData(const google::protobuf::Message& message);
// The same, with only the repeated fields of `message`, for a response that the caller composed: its other
// fields have no value.
std::string ToYamlLists(const google::protobuf::Message& message);
std::string ToJsonLists(const google::protobuf::Message& message);
std::string ToJsonLine(const google::protobuf::Message& message);  // On one line, without a newline.

// One value of ToJsonData's, without the quotes of text; `index` -1 where the field is no list.
std::string ScalarText(const google::protobuf::Message& message,
                       const google::protobuf::FieldDescriptor& field, int index);
// A list of it, on one line.
std::string ListLine(const google::protobuf::Message& message,
                     const google::protobuf::FieldDescriptor& field);

}  // namespace fsdpd
