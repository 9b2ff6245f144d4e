// Messages for programs: -o json and -o yaml, one form in two notations (ToJsonData and ToYamlData of
// client/spec_print.h).
#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace fsdpd {

// Of -o: "json" or "yaml", which every command has.
bool IsData(const std::string& output);

// `output`: one of those.
std::string Rendered(const google::protobuf::Message& message, const std::string& output);

// Only the repeated fields of `message`, for a response that the caller composed.
std::string RenderedLists(const google::protobuf::Message& message, const std::string& output);

}  // namespace fsdpd
