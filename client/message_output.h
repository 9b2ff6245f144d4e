// Messages for programs: -o json and -o yaml, one form in two notations (ToJsonData and ToYamlData of
// client/spec_print.h).
#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace fsdpd {

// `output`: "json" or "yaml".
std::string Rendered(const google::protobuf::Message& message, const std::string& output);

}  // namespace fsdpd
