// Messages for programs: -o json and -o yaml.
#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace fsdpd {

// `output`: "json" (protobuf's JSON with proto field names, indented) or "yaml" (client/spec_print.h). A
// message whose only field is a list shows the list even when it is empty.
std::string Rendered(const google::protobuf::Message& message, const std::string& output);

// One line of JSON without a newline.
std::string JsonLine(const google::protobuf::Message& message);

}  // namespace fsdpd
