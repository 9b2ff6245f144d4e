#include "coordinator/admission/job_size.h"

#include <absl/strings/str_cat.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <vector>

namespace fsdpd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// nullptr for an empty message.
const FieldDescriptor* LargestOf(const Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> set;
  reflection.ListFields(message, &set);
  const FieldDescriptor* largest = nullptr;
  size_t least_left = message.ByteSizeLong() + 1;
  for (const FieldDescriptor* field : set) {
    const std::unique_ptr<Message> without(message.New());
    without->CopyFrom(message);
    reflection.ClearField(without.get(), field);
    if (without->ByteSizeLong() >= least_left) continue;
    least_left = without->ByteSizeLong();
    largest = field;
  }
  return largest;
}

// "data.tokens"
std::string LargestField(const Message& message) {
  const FieldDescriptor* field = LargestOf(message);
  if (field == nullptr) return "";
  const bool descends = !field->is_repeated() && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  const std::string below =
      descends ? LargestField(message.GetReflection()->GetMessage(message, field)) : std::string();
  return absl::StrCat(field->name(), below.empty() ? "" : ".", below);
}

}  // namespace

Violation TooLarge(const v1::JobSpec& spec, absl::string_view why) {
  Violation violation;
  violation.rule = "job_fits_store";
  violation.field = LargestField(spec);
  violation.reason = absl::StrCat("is the largest field of a job that is too large: ", why);
  violation.fix = "make it smaller, for example with shorter paths, or fewer and larger files";
  return violation;
}

}  // namespace fsdpd
