// Printer of messages as block YAML or JSON, for users (the inverse of spec_text.h) and for programs (-o).
// Enums have short names, sizes are plain numbers, and fields are ordered by number. Works for all messages
// of this project. Pure functions.
//
// It does not use the emitter of yaml-cpp, which writes the strings "no" and "123" without quotes, so that
// they would be read as other types, and 0.1 as 0.10000000000000001.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string>

namespace fsdpd {

// Omit fields that are not set.
std::string ToYaml(const google::protobuf::Message& message);  // Ends with a newline.
std::string ToJson(const google::protobuf::Message& message);  // Indented by two; ends with a newline.

// For programs: fields without presence are always printed, including zeros, empty strings and empty lists.
// Only unset messages, `optional` fields and oneof members are omitted. Non-finite numbers are .nan and .inf
// in YAML, and "NaN" and "Infinity" in JSON.
std::string ToYamlData(const google::protobuf::Message& message);
std::string ToJsonData(const google::protobuf::Message& message);
// The same for only the repeated fields of `message`, for a response that the caller assembled from several
// pages: its other fields have no meaning.
std::string ToYamlLists(const google::protobuf::Message& message);
std::string ToJsonLists(const google::protobuf::Message& message);
std::string ToJsonLine(const google::protobuf::Message& message);  // On one line, without a newline.

// One value as in ToJsonData(), without quotes around strings. `index`: -1 if the field is not repeated.
std::string ScalarText(const google::protobuf::Message& message,
                       const google::protobuf::FieldDescriptor& field, int index);
// A repeated field as in ToJsonData(), on one line.
std::string ListLine(const google::protobuf::Message& message,
                     const google::protobuf::FieldDescriptor& field);

}  // namespace fsdpd
