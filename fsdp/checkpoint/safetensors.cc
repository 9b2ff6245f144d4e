#include "fsdp/checkpoint/safetensors.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/json_quote.h"
#include "fsdp/checkpoint/dcp_index.h"
#include "fsdp/checkpoint/json.h"
#include "fsdp/checkpoint/torch_save.h"

namespace fsdpd {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kAlignment = 8;  // Of the first number.
// Readers of PyTorch's world look for it.
constexpr char kNotes[] = "\"__metadata__\":{\"format\":\"pt\"}";
constexpr size_t kMaxDimensions = 64;  // As many as torch has.

struct NameOfType {
  const char* ours;
  const char* theirs;
};
constexpr NameOfType kNames[] = {
    {"float64", "F64"},         {"float32", "F32"},
    {"float16", "F16"},         {"bfloat16", "BF16"},
    {"float8_e5m2", "F8_E5M2"}, {"float8_e4m3fn", "F8_E4M3"},
    {"int64", "I64"},           {"int32", "I32"},
    {"int16", "I16"},           {"int8", "I8"},
    {"uint64", "U64"},          {"uint32", "U32"},
    {"uint16", "U16"},          {"uint8", "U8"},
    {"bool", "BOOL"},           {"complex64", "C64"},
};

const char* TheirNameOf(const TensorType& type) {
  for (const NameOfType& name : kNames) {
    if (type.name == name.ours) return name.theirs;
  }
  return nullptr;
}

const TensorType* FindType(const std::string& theirs) {
  for (const NameOfType& name : kNames) {
    if (theirs == name.theirs) return FindTensorType(name.ours);
  }
  return nullptr;
}

absl::Status Wrong(const std::string& name, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(name, ": ", what));
}

absl::StatusOr<std::vector<int64_t>> WholeNumbers(const std::string& name, const JsonValue& entry,
                                                  const std::string& key, size_t most) {
  const JsonValue* list = entry.Find(key);
  if (list == nullptr || list->kind != JsonValue::Kind::kList || list->items.size() > most) {
    return Wrong(name, absl::StrCat("has no ", key, " that is a short list"));
  }
  std::vector<int64_t> numbers;
  for (const JsonValue& item : list->items) {
    int64_t number = 0;
    if (item.kind != JsonValue::Kind::kNumber || !absl::SimpleAtoi(item.text, &number) || number < 0) {
      return Wrong(name, "a size or an offset is not a whole number");
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<SafetensorsEntry> ReadEntry(const std::string& name, const JsonValue& object) {
  if (object.kind != JsonValue::Kind::kObject) return Wrong(name, "is not an object");
  SafetensorsEntry entry;
  entry.name = name;
  const JsonValue* type = object.Find("dtype");
  if (type == nullptr || type->kind != JsonValue::Kind::kText) return Wrong(name, "has no dtype");
  FSDPD_ASSIGN_OR_RETURN(entry.shape, WholeNumbers(name, object, "shape", kMaxDimensions));
  FSDPD_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, WholeNumbers(name, object, "data_offsets", 2));
  if (offsets.size() != 2 || offsets[1] < offsets[0]) return Wrong(name, "its data_offsets are no range");
  entry.type = FindType(type->text);
  if (entry.type == nullptr) {
    return absl::UnimplementedError(absl::StrCat(name, ": numbers of type ", type->text, " are not read"));
  }
  entry.begin = offsets[0];
  entry.bytes = offsets[1] - offsets[0];
  const absl::StatusOr<int64_t> bytes = BytesOf(*entry.type, entry.shape);
  if (!bytes.ok() || *bytes != entry.bytes) {
    return Wrong(name, absl::StrCat("has ", entry.bytes, " bytes, which are not ", ShapeText(entry.shape),
                                    " of type ", entry.type->name));
  }
  return entry;
}

}  // namespace

absl::StatusOr<std::vector<SafetensorsEntry>> ReadSafetensors(int64_t size, const ReadAt& read) {
  if (size < kLengthBytes) return absl::DataLossError("is too short for a safetensors file");
  uint64_t length = 0;
  FSDPD_RETURN_IF_ERROR(read(0, kLengthBytes, &length));
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "as the length is written");
  if (length > static_cast<uint64_t>(size - kLengthBytes)) {
    return absl::DataLossError(
        absl::StrCat("its head is said to have ", length, " bytes, and the file has ", size));
  }
  if (length > kMaxSafetensorsHeadBytes) {
    return absl::DataLossError(absl::StrCat("its head has ", length, " bytes, too many"));
  }
  std::string head(length, '\0');
  FSDPD_RETURN_IF_ERROR(read(kLengthBytes, static_cast<int64_t>(length), head.data()));
  // The format's own rule: nothing stands before the object.
  if (head.empty() || head[0] != '{') return absl::DataLossError("its head is no JSON object");
  JsonLimits limits;
  limits.bytes = kMaxSafetensorsHeadBytes;
  const absl::StatusOr<JsonValue> object = ParseJson(head, limits);
  if (!object.ok()) {
    return absl::DataLossError(absl::StrCat("its head is no JSON object: ", object.status().message()));
  }
  std::vector<SafetensorsEntry> entries;
  for (size_t i = 0; i < object->keys.size(); ++i) {
    if (object->keys[i] == "__metadata__") continue;
    FSDPD_ASSIGN_OR_RETURN(SafetensorsEntry entry, ReadEntry(object->keys[i], object->items[i]));
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.bytes, a.name) < std::tie(b.begin, b.bytes, b.name);
  });
  const int64_t first = kLengthBytes + static_cast<int64_t>(length);
  int64_t end = 0;
  for (SafetensorsEntry& entry : entries) {
    if (entry.begin != end) return Wrong(entry.name, "there is a gap or an overlap before its numbers");
    end += entry.bytes;  // What an offset was, so it fits.
    entry.begin += first;
  }
  if (end != size - first) {
    return absl::DataLossError(
        absl::StrCat("its tensors have ", end, " bytes, and after the head there are ", size - first));
  }
  return entries;
}

std::string LayOutSafetensors(std::vector<SafetensorsEntry>* tensors) {
  std::string head = absl::StrCat("{", kNotes);
  int64_t end = 0;
  for (SafetensorsEntry& tensor : *tensors) {
    FSDPD_CHECK(HasSafetensorsName(*tensor.type));
    absl::StrAppend(&head, ",", JsonQuoted(tensor.name), ":{\"dtype\":\"", TheirNameOf(*tensor.type),
                    "\",\"shape\":[", absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[", end, ",",
                    end + tensor.bytes, "]}");
    tensor.begin = end;
    end += tensor.bytes;
  }
  head += "}";
  head.append((kAlignment - head.size() % kAlignment) % kAlignment, ' ');
  std::string file(kLengthBytes, '\0');
  const uint64_t length = head.size();
  std::memcpy(file.data(), &length, kLengthBytes);
  file += head;
  for (SafetensorsEntry& tensor : *tensors) tensor.begin += static_cast<int64_t>(file.size());
  return file;
}

bool HasSafetensorsName(const TensorType& type) { return TheirNameOf(type) != nullptr; }

}  // namespace fsdpd
