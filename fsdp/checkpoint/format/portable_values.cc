#include "fsdp/checkpoint/format/portable_values.h"

#include <utility>

#include "fsdp/checkpoint/format/torch_save.h"

namespace fsdpd {
namespace {

// Limit per value: parts of a pickle may be shared, so a small pickle can be a tree of any size.
constexpr int64_t kMaxItems = 1 << 20;
constexpr int kMaxDepth = 8;

std::optional<PortableValue> ToPortable(const PickleValue& value, int depth, int64_t* items) {
  if (++*items > kMaxItems || depth > kMaxDepth) return std::nullopt;
  switch (value.kind) {
    case PickleKind::kNone:
      return PortableValue{std::monostate()};
    case PickleKind::kBool:
      return PortableValue{value.integer != 0};
    case PickleKind::kInt:
      return PortableValue{value.integer};
    case PickleKind::kFloat:
      return PortableValue{value.real};
    case PickleKind::kString:
      if (!IsUtf8(value.text)) return std::nullopt;
      return PortableValue{std::string(value.text)};
    case PickleKind::kList: {
      std::vector<PortableValue> list;
      for (const PickleValue* item : value.items) {
        std::optional<PortableValue> kept = ToPortable(*item, depth + 1, items);
        if (!kept.has_value()) return std::nullopt;
        list.push_back(*std::move(kept));
      }
      return PortableValue{std::move(list)};
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<PortableValue> ToPortable(const PickleValue& value) {
  int64_t items = 0;
  return ToPortable(value, 0, &items);
}

void WritePortable(const PortableValue& kept, PickleWriter* writer) {
  if (std::holds_alternative<std::monostate>(kept.value)) return writer->None();
  if (const auto* flag = std::get_if<bool>(&kept.value)) return writer->Bool(*flag);
  if (const auto* integer = std::get_if<int64_t>(&kept.value)) return writer->Int(*integer);
  if (const auto* real = std::get_if<double>(&kept.value)) return writer->Float(*real);
  if (const auto* text = std::get_if<std::string>(&kept.value)) return writer->Text(*text);
  writer->BeginList();
  for (const PortableValue& item : std::get<std::vector<PortableValue>>(kept.value))
    WritePortable(item, writer);
  writer->Appends();
}

std::string SavedPortable(const PortableValue& kept) {
  PickleWriter writer;
  WritePortable(kept, &writer);
  return TorchSaved(writer.Take());
}

std::optional<std::string> PortableText(const PortableValues& values, const std::string& name) {
  const auto found = values.find(name);
  const auto* text = found == values.end() ? nullptr : std::get_if<std::string>(&found->second.value);
  return text == nullptr ? std::nullopt : std::optional<std::string>(*text);
}

std::optional<int64_t> PortableCount(const PortableValues& values, const std::string& name) {
  const auto found = values.find(name);
  const auto* count = found == values.end() ? nullptr : std::get_if<int64_t>(&found->second.value);
  return count == nullptr || *count < 0 ? std::nullopt : std::optional<int64_t>(*count);
}

}  // namespace fsdpd
