#include "client/commands/step_export.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <array>
#include <cmath>
#include <cstring>

#include "client/text/step_table.h"

namespace fsdpd {
namespace {

// The format is little-endian, like all supported platforms.
template <typename T>
void AppendFixed(std::string* out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out->append(bytes, sizeof value);
}

void AppendVarint(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

// Wire types of protobuf.
enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void AppendTag(std::string* out, int field, Wire wire) {
  AppendVarint(out, static_cast<uint64_t>(field << 3 | wire));
}

void AppendBytes(std::string* out, int field, absl::string_view bytes) {
  AppendTag(out, field, kBytes);
  AppendVarint(out, bytes.size());
  out->append(bytes.data(), bytes.size());
}

uint32_t Masked(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

std::string Record(const std::string& data) {
  std::string length, record;
  AppendFixed<uint64_t>(&length, data.size());
  record = length;
  AppendFixed(&record, Masked(length));
  record += data;
  AppendFixed(&record, Masked(data));
  return record;
}

std::string EventAt(double unix_seconds) {
  std::string event;
  AppendTag(&event, 1, kFixed64);  // Event.wall_time
  AppendFixed(&event, unix_seconds);
  return event;
}

}  // namespace

uint32_t Crc32c(absl::string_view bytes) {
  static const std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < table.size(); ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ 0x82f63b78u : value >> 1;
      table[i] = value;
    }
    return table;
  }();
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ crc >> 8;
  return ~crc;
}

std::string TensorBoardBegin(double unix_seconds) {
  std::string event = EventAt(unix_seconds);
  AppendBytes(&event, 3, "brain.Event:2");  // Event.file_version
  return Record(event);
}

std::string TensorBoardStep(const v1::StepRecord& record) {
  std::string summary;
  for (const StepQuantity& quantity : StepQuantities()) {
    const std::optional<double> value = quantity.value(record);
    if (!value.has_value()) continue;
    std::string scalar;
    AppendBytes(&scalar, 1, quantity.tag);  // Summary.Value.tag
    AppendTag(&scalar, 2, kFixed32);        // Summary.Value.simple_value
    AppendFixed(&scalar, static_cast<float>(*value));
    AppendBytes(&summary, 1, scalar);  // Summary.value
  }
  std::string event = EventAt(static_cast<double>(record.unix_nanos()) / 1e9);
  AppendTag(&event, 2, kVarint);  // Event.step
  AppendVarint(&event, static_cast<uint64_t>(record.step()));
  AppendBytes(&event, 5, summary);  // Event.summary
  return Record(event);
}

std::string WandbStep(const v1::StepRecord& record, int64_t begin_unix_nanos) {
  std::string line =
      absl::StrFormat("{\"_step\":%d,\"_timestamp\":%.6f,\"_runtime\":%.6f,\"attempt\":%d", record.step(),
                      static_cast<double>(record.unix_nanos()) / 1e9,
                      static_cast<double>(record.unix_nanos() - begin_unix_nanos) / 1e9, record.attempt());
  for (const StepQuantity& quantity : StepQuantities()) {
    const std::optional<double> value = quantity.value(record);
    if (!value.has_value()) continue;
    // W&B writes non-finite numbers as strings.
    const std::string text = std::isnan(*value)   ? "\"NaN\""
                             : std::isinf(*value) ? (*value > 0 ? "\"Infinity\"" : "\"-Infinity\"")
                                                  : NumberText(*value);
    absl::StrAppend(&line, ",\"", quantity.tag, "\":", text);
  }
  return line + "}\n";
}

}  // namespace fsdpd
