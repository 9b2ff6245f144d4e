// Output of API messages for programs: -o json and -o yaml, with the same data in both (ToJsonData and
// ToYamlData of client/spec/spec_print.h).
#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace fsdpd {

// Whether a value of -o is "json" or "yaml", which every command supports.
bool IsData(const std::string& output);

// REQUIRES: IsData(output).
std::string Rendered(const google::protobuf::Message& message, const std::string& output);

// One of several messages that are printed as they come: a line of JSON, or a YAML document.
std::string RenderedItem(const google::protobuf::Message& message, const std::string& output);

// Prints only the repeated fields of `message`, for a response that the caller assembled from several pages.
std::string RenderedLists(const google::protobuf::Message& message, const std::string& output);

}  // namespace fsdpd
