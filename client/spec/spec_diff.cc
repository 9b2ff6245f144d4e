#include "client/spec/spec_diff.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/check.h"
#include "client/spec/spec_print.h"

namespace fsdpd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

class Comparison {
 public:
  Comparison(const Message& written_first, const Message& written_second) {
    AddWritten(written_first, "");
    AddWritten(written_second, "");
  }

  std::vector<FieldDifference> Take() { return std::move(differences_); }

  // Null means that the message is not set.
  void Messages(const Message* first, const Message* second, const std::string& path) {
    const Message& any = first != nullptr ? *first : *second;
    std::vector<const FieldDescriptor*> fields;
    for (int i = 0; i < any.GetDescriptor()->field_count(); ++i)
      fields.push_back(any.GetDescriptor()->field(i));
    std::sort(fields.begin(), fields.end(),
              [](const auto* a, const auto* b) { return a->number() < b->number(); });
    const size_t before = differences_.size();
    for (const FieldDescriptor* field : fields)
      Field(first, second, *field, path.empty() ? field->name() : absl::StrCat(path, ".", field->name()));
    if ((first == nullptr) == (second == nullptr)) return;
    const auto is_default = [&](const FieldDifference& each) { return written_.count(each.field) == 0; };
    const auto found = differences_.begin() + static_cast<ptrdiff_t>(before);
    differences_.erase(std::remove_if(found, differences_.end(), is_default), differences_.end());
    // A submessage that is set but has no listed fields is a difference by itself.
    if (differences_.size() == before) Add(path, Whole(first), Whole(second));
  }

 private:
  using Text = std::optional<std::string>;

  void AddWritten(const Message& message, const std::string& path) {
    std::vector<const FieldDescriptor*> fields;
    message.GetReflection()->ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      const std::string below = path.empty() ? field->name() : absl::StrCat(path, ".", field->name());
      written_.insert(below);
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
      if (!field->is_repeated()) AddWritten(*Child(&message, *field), below);
      for (int i = 0; field->is_repeated() && i < SizeOf(&message, *field); ++i) {
        const std::string element = absl::StrCat(below, "[", i, "]");
        written_.insert(element);
        AddWritten(*Child(&message, *field, i), element);
      }
    }
  }

  static Text Whole(const Message* message) { return message == nullptr ? Text() : Text("{}"); }

  void Add(const std::string& path, Text first, Text second, bool is_literal = false) {
    if (first != second) differences_.push_back({path, std::move(first), std::move(second), is_literal});
  }

  // NaN and infinity are strings in JSON.
  static bool IsLiteral(const FieldDescriptor& field, const Text& text) {
    double number = 0;
    if (!text.has_value() || field.is_repeated() || field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL)
      return true;
    return field.cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
           field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM && absl::SimpleAtod(*text, &number) &&
           std::isfinite(number);
  }

  void Field(const Message* first, const Message* second, const FieldDescriptor& field,
             const std::string& path) {
    if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      Text a = TextOf(first, field), b = TextOf(second, field);
      const bool is_literal = IsLiteral(field, a) && IsLiteral(field, b);
      return Add(path, std::move(a), std::move(b), is_literal);
    }
    if (!field.is_repeated()) {
      const Message* const a = Child(first, field);
      const Message* const b = Child(second, field);
      if (a != nullptr || b != nullptr) Messages(a, b, path);
      return;
    }
    const int size = std::max(SizeOf(first, field), SizeOf(second, field));
    for (int i = 0; i < size; ++i)
      Messages(Child(first, field, i), Child(second, field, i), absl::StrCat(path, "[", i, "]"));
  }

  static int SizeOf(const Message* message, const FieldDescriptor& field) {
    return message == nullptr ? 0 : message->GetReflection()->FieldSize(*message, &field);
  }

  static const Message* Child(const Message* message, const FieldDescriptor& field) {
    if (message == nullptr || !message->GetReflection()->HasField(*message, &field)) return nullptr;
    return &message->GetReflection()->GetMessage(*message, &field);
  }
  static const Message* Child(const Message* message, const FieldDescriptor& field, int index) {
    if (index >= SizeOf(message, field)) return nullptr;
    return &message->GetReflection()->GetRepeatedMessage(*message, &field, index);
  }

  // A field without presence has the value zero, except if its message is not set.
  static Text TextOf(const Message* message, const FieldDescriptor& field) {
    if (message == nullptr) return std::nullopt;
    if (field.is_repeated()) {
      if (SizeOf(message, field) == 0) return std::nullopt;
      return ListLine(*message, field);
    }
    // An empty string, an empty list and an UNSPECIFIED enum count as not set.
    const bool is_set = message->GetReflection()->HasField(*message, &field);
    const bool has_zero = !field.has_presence() && field.cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
                          field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM;
    if (!is_set && !has_zero) return std::nullopt;
    return ScalarText(*message, field, -1);
  }

  std::set<std::string> written_;  // Paths of explicitly written fields and submessages.
  std::vector<FieldDifference> differences_;
};

}  // namespace

std::vector<FieldDifference> DifferencesOf(const Message& first, const Message& second,
                                           const Message& written_first, const Message& written_second) {
  FSDPD_CHECK(first.GetDescriptor() == second.GetDescriptor());
  Comparison comparison(written_first, written_second);
  comparison.Messages(&first, &second, "");
  return comparison.Take();
}

}  // namespace fsdpd
