#include "base/rank/message_texts.h"

#include <google/protobuf/descriptor.h>

#include <string>
#include <utility>
#include <vector>

#include "base/text.h"

namespace fsdpd {
namespace {

namespace pb = google::protobuf;

// Overhead per element: without it, a list of empty strings would be unbounded.
constexpr size_t kElementBytes = 16;

void Cut(size_t most, std::string* text) {
  if (text->size() > most) *text = CutText(*text, most);
}

void CutList(size_t most, const pb::FieldDescriptor* field, pb::Message* message) {
  const pb::Reflection& as = *message->GetReflection();
  const int size = as.FieldSize(*message, field);
  size_t bytes = 0;
  int first = size;
  while (first > 0) {
    std::string text = as.GetRepeatedString(*message, field, first - 1);
    Cut(most, &text);
    bytes += text.size() + kElementBytes;
    if (bytes > kMaxTextListBytes) break;
    as.SetRepeatedString(message, field, --first, std::move(text));
  }
  if (first == 0) return;
  for (int i = first; i < size; ++i) as.SwapElements(message, field, i - first, i);
  for (int i = 0; i < first; ++i) as.RemoveLast(message, field);
}

void CutField(const pb::FieldDescriptor* field, pb::Message* message) {
  const pb::Reflection& as = *message->GetReflection();
  if (field->cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE) {
    if (!field->is_repeated()) return CutTexts(as.MutableMessage(message, field));
    for (int i = 0; i < as.FieldSize(*message, field); ++i)
      CutTexts(as.MutableRepeatedMessage(message, field, i));
    return;
  }
  if (field->type() != pb::FieldDescriptor::TYPE_STRING) return;
  const bool is_position = field->name() == "position";
  const size_t most = is_position ? kMaxPositionBytes : kMaxTextBytes;
  if (field->is_repeated()) return CutList(most, field, message);
  std::string text = as.GetString(*message, field);
  if (text.size() <= most) return;
  Cut(most, &text);
  as.SetString(message, field, std::move(text));
}

}  // namespace

void CutTexts(pb::Message* message) {
  std::vector<const pb::FieldDescriptor*> set;
  message->GetReflection()->ListFields(*message, &set);
  for (const pb::FieldDescriptor* field : set) CutField(field, message);
}

}  // namespace fsdpd
