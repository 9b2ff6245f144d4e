#include "coordinator/admission/spec_shape.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

namespace fsdpd {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string Join(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

Violation UnknownEnum(const std::string& path, const EnumDescriptor& type, int number) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) names.push_back(std::string(type.value(i)->name()));
  }
  Violation violation;
  violation.rule = kUnknownEnum;
  violation.field = path;
  violation.reason = absl::StrCat(number, " is not a ", type.name(), " that this coordinator supports.");
  violation.fix = absl::StrCat("Use one of ", absl::StrJoin(names, ", "), ".");
  return violation;
}

void CheckEnums(const Message& message, const FieldDescriptor& field, const std::string& path,
                Violations* violations) {
  const auto* reflection = message.GetReflection();
  const int count = field.is_repeated() ? reflection->FieldSize(message, &field) : 1;
  for (int i = 0; i < count; ++i) {
    const int number = field.is_repeated() ? reflection->GetRepeatedEnumValue(message, &field, i)
                                           : reflection->GetEnumValue(message, &field);
    if (field.enum_type()->FindValueByNumber(number) != nullptr) continue;
    violations->push_back(UnknownEnum(field.is_repeated() ? absl::StrCat(path, "[", i, "]") : path,
                                      *field.enum_type(), number));
  }
}

// The schema bounds the depth: JobSpec has no recursive message.
void Check(const Message& message, const std::string& path, Violations* violations) {
  const auto* reflection = message.GetReflection();
  const auto& unknown = reflection->GetUnknownFields(message);
  if (!unknown.empty()) {
    Violation violation;
    violation.rule = "unknown_field";
    violation.field = path;
    violation.reason = absl::StrCat("Has field number ", unknown.field(0).number(),
                                    ", which this coordinator does not know and would ignore.");
    violation.fix = "Use a client of the coordinator's version, or update the coordinator.";
    violations->push_back(violation);
  }
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string at = Join(path, std::string(field->name()));
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) CheckEnums(message, *field, at, violations);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      Check(reflection->GetMessage(message, field), at, violations);
      continue;
    }
    for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
      Check(reflection->GetRepeatedMessage(message, field, i), absl::StrCat(at, "[", i, "]"), violations);
    }
  }
}

}  // namespace

Violations CheckSpecShape(const v1::JobSpec& spec) {
  Violations violations;
  Check(spec, "", &violations);
  return violations;
}

}  // namespace fsdpd
