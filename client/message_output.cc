#include "client/message_output.h"

#include <absl/strings/str_cat.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include "base/check.h"
#include "client/spec_print.h"

namespace fsdpd {
namespace {

std::string Json(const google::protobuf::Message& message, bool indent) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.add_whitespace = indent;
  std::string text;
  // Fails only for text that is not UTF-8, which protobuf refused when it parsed the message.
  FSDPD_CHECK(google::protobuf::util::MessageToJsonString(message, &text, options).ok());
  return text;
}

}  // namespace

std::string Rendered(const google::protobuf::Message& message, const std::string& output) {
  const auto* type = message.GetDescriptor();
  const auto* list = type->field_count() > 0 && type->field(0)->is_repeated() ? type->field(0) : nullptr;
  const bool empty_list = list != nullptr && message.GetReflection()->FieldSize(message, list) == 0;
  if (empty_list) {
    return output == "json" ? absl::StrCat("{\n \"", list->name(), "\": []\n}\n")
                            : absl::StrCat(list->name(), ": []\n");
  }
  return output == "json" ? Json(message, true) : ToYaml(message);
}

std::string JsonLine(const google::protobuf::Message& message) { return Json(message, false); }

}  // namespace fsdpd
