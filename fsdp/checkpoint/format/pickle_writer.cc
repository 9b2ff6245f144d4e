#include "fsdp/checkpoint/format/pickle_writer.h"

#include <absl/strings/str_cat.h>
#include <string.h>

#include <utility>

#include "base/check.h"

namespace fsdpd {

PickleWriter::PickleWriter() : bytes_("\x80\x02") {}

void PickleWriter::Append(char opcode, uint64_t argument, int width) {
  bytes_ += opcode;
  bytes_.append(reinterpret_cast<const char*>(&argument), width);
}

void PickleWriter::Int(int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  if (value >= 0 && value <= 0xff) return Append('K', bits, 1);
  if (value >= 0 && value <= 0xffff) return Append('M', bits, 2);
  if (value >= INT32_MIN && value <= INT32_MAX) return Append('J', bits, 4);
  // The fewest bytes that hold the value and its sign.
  int width = 8;
  const auto fits = [&](int bytes) {
    return value == static_cast<int64_t>(bits << (64 - 8 * bytes)) >> (64 - 8 * bytes);
  };
  while (fits(width - 1)) --width;
  Append('\x8a', width, 1);
  bytes_.append(reinterpret_cast<const char*>(&bits), width);
}

void PickleWriter::Float(double value) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  Append('G', __builtin_bswap64(bits), 8);
}

void PickleWriter::Text(absl::string_view text) {
  if (Known(absl::StrCat("t", text))) return;
  Append('X', text.size(), 4);
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
  remembered_ < 256 ? Append('q', remembered_, 1) : Append('r', remembered_, 4);
  return remembered_++;
}

void PickleWriter::Again(int64_t remembered) {
  FSDPD_CHECK(remembered < remembered_);
  remembered < 256 ? Append('h', remembered, 1) : Append('j', remembered, 4);
}

std::string PickleWriter::Take() {
  bytes_ += '.';
  return std::move(bytes_);
}

}  // namespace fsdpd
