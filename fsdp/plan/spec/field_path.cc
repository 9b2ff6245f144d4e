#include "fsdp/plan/spec/field_path.h"

#include <absl/strings/numbers.h>

#include "base/check.h"
#include "base/spec_text/enum_name.h"

namespace fsdpd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

int NumberOf(const google::protobuf::EnumDescriptor& type, const std::string& name) {
  for (int i = 0; i < type.value_count(); ++i) {
    if (ShortEnumName(*type.value(i)) == name) return type.value(i)->number();
  }
  FSDPD_CHECK(false);
  return 0;
}

const FieldDescriptor* FieldOf(const Message& message, absl::string_view name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(std::string(name));
  FSDPD_CHECK(field != nullptr);
  return field;
}

}  // namespace

FieldAt FindField(const Message& root, absl::string_view path) {
  FieldAt at{&root};
  for (size_t begin = 0; at.parent != nullptr; ++begin) {
    const size_t end = path.find('.', begin);
    at.field = FieldOf(*at.parent, path.substr(begin, end - begin));
    if (end == absl::string_view::npos) return at;
    at.parent = at.is_set() ? &at.parent->GetReflection()->GetMessage(*at.parent, at.field) : nullptr;
    begin = end;
  }
  return at;
}

void SetField(Message* root, absl::string_view path, const std::string& value) {
  for (size_t dot = path.find('.'); dot != absl::string_view::npos; dot = path.find('.')) {
    root = root->GetReflection()->MutableMessage(root, FieldOf(*root, path.substr(0, dot)));
    path.remove_prefix(dot + 1);
  }
  const FieldDescriptor* field = FieldOf(*root, path);
  const auto& reflection = *root->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t number = 0;
      FSDPD_CHECK(absl::SimpleAtoi(value, &number));
      return reflection.SetInt64(root, field, number);
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double number = 0;
      FSDPD_CHECK(absl::SimpleAtod(value, &number));
      return reflection.SetDouble(root, field, number);
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(root, field, value == "true");
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.SetEnumValue(root, field, NumberOf(*field->enum_type(), value));
    default:
      return reflection.SetString(root, field, value);
  }
}

bool SetIfUnset(Message* root, absl::string_view path, const std::string& value) {
  const FieldAt at = FindField(*root, path);
  if (at.parent == nullptr || at.is_set()) return false;
  SetField(root, path, value);
  return true;
}

}  // namespace fsdpd
