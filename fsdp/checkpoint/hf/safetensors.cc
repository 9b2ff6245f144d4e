#include "fsdp/checkpoint/hf/safetensors.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/json_quote.h"
#include "base/spec_text/located_violation.h"
#include "fsdp/checkpoint/format/json.h"
#include "fsdp/checkpoint/format/torch_save.h"

namespace fsdpd {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kAlignment = 8;  // Alignment of the first element.
// PyTorch programs check for it.
constexpr char kNotes[] = "\"__metadata__\":{\"format\":\"pt\"}";
constexpr size_t kMaxDimensions = 64;  // Torch's limit.

std::string BytesText(int64_t bytes) { return absl::StrCat(bytes, bytes == 1 ? " byte" : " bytes"); }

// The header of one file.
class Head {
 public:
  explicit Head(int64_t size) : size_(size) {}

  absl::StatusOr<SafetensorsContents> Look(const ReadAt& read) {
    FSDPD_RETURN_IF_ERROR(ReadObject(read));
    for (size_t i = 0; i < object_.keys.size(); ++i) {
      if (object_.keys[i] != "__metadata__") AddEntry(object_.keys[i], object_.items[i]);
    }
    if (object_.kind == JsonValue::Kind::kObject) CheckPlaces();
    return std::move(contents_);
  }

 private:
  void AddViolation(const std::string& where, const std::string& what,
                    absl::StatusCode code = absl::StatusCode::kDataLoss) {
    contents_.first.Update(
        absl::Status(code, Escaped(where.empty() ? what : absl::StrCat(where, ": ", what))));
    contents_.violations.Add(where, what);
  }

  // Leaves `object_` null if it is invalid.
  absl::Status ReadObject(const ReadAt& read) {
    const auto wrong = [this](const std::string& what) {
      AddViolation("", what);
      return absl::OkStatus();
    };
    if (size_ < kLengthBytes) return wrong("file is too short for a safetensors header");
    uint64_t length = 0;
    FSDPD_RETURN_IF_ERROR(read(0, kLengthBytes, &length));
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "as the length is written");
    if (length > static_cast<uint64_t>(size_ - kLengthBytes)) {
      return wrong(absl::StrCat("header exceeds the file (header: ", length, " bytes, file: ", size_, ")"));
    }
    if (length > kMaxSafetensorsHeadBytes) {
      return wrong(absl::StrCat("header is too large (got ", length, " bytes)"));
    }
    contents_.head_bytes = kLengthBytes + static_cast<int64_t>(length);
    std::string head(length, '\0');
    FSDPD_RETURN_IF_ERROR(read(kLengthBytes, static_cast<int64_t>(length), head.data()));
    // Required by the format: the object starts at the first byte.
    if (head.empty() || head[0] != '{') return wrong("header is not a JSON object");
    JsonLimits limits;
    limits.bytes = kMaxSafetensorsHeadBytes;
    absl::StatusOr<JsonValue> object = ParseJson(head, limits);
    if (!object.ok()) return wrong(absl::StrCat("header is not a JSON object: ", object.status().message()));
    object_ = *std::move(object);
    return absl::OkStatus();
  }

  // Nullopt, with a violation, if it is not a short list of integers.
  std::optional<std::vector<int64_t>> WholeNumbers(const std::string& name, const JsonValue& entry,
                                                   const std::string& key, size_t most) {
    const JsonValue* list = entry.Find(key);
    if (list == nullptr || list->kind != JsonValue::Kind::kList || list->items.size() > most) {
      AddViolation(name, absl::StrCat("invalid or missing ", key, " (want a list)"));
      return std::nullopt;
    }
    std::vector<int64_t> numbers;
    for (const JsonValue& item : list->items) {
      int64_t number = 0;
      if (item.kind != JsonValue::Kind::kNumber || !absl::SimpleAtoi(item.text, &number) || number < 0) {
        AddViolation(name, "sizes and offsets must be integers of at least 0");
        return std::nullopt;
      }
      numbers.push_back(number);
    }
    return numbers;
  }

  // The entry's position is within the data; CheckPlaces() does the rest.
  void AddEntry(const std::string& name, const JsonValue& object) {
    if (object.kind != JsonValue::Kind::kObject) return AddViolation(name, "is not an object");
    const JsonValue* type = object.Find("dtype");
    if (type == nullptr || type->kind != JsonValue::Kind::kText) return AddViolation(name, "has no dtype");
    const auto shape = WholeNumbers(name, object, "shape", kMaxDimensions);
    const auto offsets = shape.has_value() ? WholeNumbers(name, object, "data_offsets", 2) : std::nullopt;
    if (!offsets.has_value()) return;
    if (offsets->size() != 2 || (*offsets)[1] < (*offsets)[0]) {
      return AddViolation(name, "invalid data_offsets");
    }
    SafetensorsEntry entry = {name,          FindTensorTypeOfSafetensors(type->text), *shape,
                              (*offsets)[0], (*offsets)[1] - (*offsets)[0],           type->text};
    const absl::StatusOr<int64_t> bytes =
        entry.type == nullptr ? entry.bytes : BytesOf(*entry.type, entry.shape);
    if (entry.type == nullptr) {
      AddViolation(name, absl::StrCat("unsupported dtype ", type->text), absl::StatusCode::kUnimplemented);
    } else if (!bytes.ok() || *bytes != entry.bytes) {
      AddViolation(name, absl::StrCat("has ", entry.bytes, " bytes, which do not match ",
                                      ShapeText(entry.shape), " of type ", entry.type->name));
    }
    contents_.entries.push_back(std::move(entry));
  }

  // Every byte of data belongs to exactly one tensor, and tensors are complete.
  void CheckPlaces() {
    const int64_t numbers = size_ - contents_.head_bytes;
    std::vector<SafetensorsEntry> entries = std::move(contents_.entries);
    contents_.entries.clear();
    std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
      return std::tie(a.begin, a.bytes, a.name) < std::tie(b.begin, b.bytes, b.name);
    });
    int64_t end = 0;  // End of the preceding ones.
    std::string before;
    for (SafetensorsEntry& entry : entries) {
      if (entry.begin > end) {
        AddViolation(entry.name,
                     absl::StrCat("unused bytes before its data: ", BytesText(entry.begin - end)));
      } else if (entry.begin < end && entry.bytes == 0) {
        AddViolation(entry.name, absl::StrCat("is inside the data of ", before));
      } else if (entry.begin < end) {
        AddViolation(entry.name, absl::StrCat(BytesText(std::min(end - entry.begin, entry.bytes)),
                                              " of its data overlap ", before));
      }
      if (entry.begin + entry.bytes > end) before = entry.name;
      end = std::max(end, entry.begin + entry.bytes);  // Was an offset, so it does not overflow.
      if (entry.begin + entry.bytes > numbers) {
        AddViolation(entry.name, absl::StrCat("data ends at byte ", entry.begin + entry.bytes,
                                              " after the header, but the file ends at ", numbers));
        continue;
      }
      entry.begin += contents_.head_bytes;
      contents_.entries.push_back(std::move(entry));
    }
    if (end < numbers) {
      AddViolation("", absl::StrCat("tensors have ", end,
                                    " bytes, but the file has this many after the header: ", numbers));
    }
  }

  const int64_t size_;
  JsonValue object_;
  SafetensorsContents contents_;
};

}  // namespace

absl::StatusOr<SafetensorsContents> InspectSafetensors(int64_t size, const ReadAt& read) {
  return Head(size).Look(read);
}

std::string LayOutSafetensors(std::vector<SafetensorsEntry>* tensors) {
  std::string head = absl::StrCat("{", kNotes);
  int64_t end = 0;
  for (SafetensorsEntry& tensor : *tensors) {
    FSDPD_CHECK(!tensor.type->safetensors.empty());
    absl::StrAppend(&head, ",", JsonQuoted(tensor.name), ":{\"dtype\":\"", tensor.type->safetensors,
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

}  // namespace fsdpd
