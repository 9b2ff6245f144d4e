#include "client/text/message_output.h"

#include "client/spec/spec_print.h"

namespace fsdpd {

bool IsData(const std::string& output) { return output == "json" || output == "yaml"; }

std::string Rendered(const google::protobuf::Message& message, const std::string& output) {
  return output == "json" ? ToJsonData(message) : ToYamlData(message);
}

std::string RenderedItem(const google::protobuf::Message& message, const std::string& output) {
  return output == "json" ? ToJsonLine(message) + "\n" : "---\n" + ToYamlData(message);
}

std::string RenderedLists(const google::protobuf::Message& message, const std::string& output) {
  return output == "json" ? ToJsonLists(message) : ToYamlLists(message);
}

}  // namespace fsdpd
