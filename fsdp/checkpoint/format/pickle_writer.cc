#include "fsdp/checkpoint/format/pickle_writer.h"

#include <absl/strings/str_cat.h>
#include <string.h>

#include <utility>

#include "base/check.h"

namespace fsdpd {

PickleWriter::PickleWriter() : bytes_("\x80\x02") {}

void PickleWriter::AppendUnsigned(uint64_t value, int width) {
  bytes_.append(reinterpret_cast<const char*>(&value), width);
}

void PickleWriter::Int(int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  if (value >= 0 && value <= 0xff) {
    bytes_ += 'K';
    return AppendUnsigned(bits, 1);
  }
  if (value >= 0 && value <= 0xffff) {
    bytes_ += 'M';
    return AppendUnsigned(bits, 2);
  }
  if (value >= INT32_MIN && value <= INT32_MAX) {
    bytes_ += 'J';
    return AppendUnsigned(bits, 4);
  }
  // The fewest bytes that hold the value and its sign.
  int width = 8;
  const auto fits = [&](int bytes) {
    return value == static_cast<int64_t>(bits << (64 - 8 * bytes)) >> (64 - 8 * bytes);
  };
  while (fits(width - 1)) --width;
  bytes_ += '\x8a';
  AppendUnsigned(width, 1);
  AppendUnsigned(bits, width);
}

void PickleWriter::Float(double value) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  bytes_ += 'G';
  AppendUnsigned(__builtin_bswap64(bits), 8);
}

void PickleWriter::Text(absl::string_view text) {
  if (Known(absl::StrCat("t", text))) return;
  bytes_ += 'X';
  AppendUnsigned(text.size(), 4);
  bytes_.append(text.data(), text.size());
  Remember();
}

void PickleWriter::Class(absl::string_view module, absl::string_view name) {
  if (Known(absl::StrCat("c", module, "\n", name))) return;
  absl::StrAppend(&bytes_, "c", module, "\n", name, "\n");
  Remember();
}

// Fetches a memoized value; otherwise reserves the next Remember() for it.
bool PickleWriter::Known(const std::string& key) {
  const auto [found, is_new] = known_.emplace(key, remembered_);
  if (!is_new) Again(found->second);
  return !is_new;
}

int64_t PickleWriter::Remember() {
  bytes_ += remembered_ < 256 ? 'q' : 'r';
  AppendUnsigned(remembered_, remembered_ < 256 ? 1 : 4);
  return remembered_++;
}

void PickleWriter::Again(int64_t remembered) {
  FSDPD_CHECK(remembered < remembered_);
  bytes_ += remembered < 256 ? 'h' : 'j';
  AppendUnsigned(remembered, remembered < 256 ? 1 : 4);
}

std::string PickleWriter::Take() {
  bytes_ += '.';
  return std::move(bytes_);
}

}  // namespace fsdpd
