#include "base/ids.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <random>

namespace fsdpd {
namespace {

// No vowels (no words) and no 0, 1, l (similar shapes).
constexpr absl::string_view kAlphabet = "bcdfghjkmnpqrstvwxz23456789";
constexpr size_t kMaxName = 40;
// Limits of RFC 1035 for a label and a whole name.
constexpr size_t kMaxLabel = 63;
constexpr size_t kMaxNodeName = 253;

uint64_t Random() {
  thread_local std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

absl::Status TooLong(size_t size, size_t limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("has ", size, " characters; at most ", limit, " are allowed"));
}

absl::Status CheckLabel(absl::string_view label) {
  if (label.empty()) return absl::InvalidArgumentError("has an empty label: two dots, or one at an end");
  if (label.size() > kMaxLabel) {
    return absl::InvalidArgumentError(
        absl::StrCat("has a label of ", label.size(), " characters; at most ", kMaxLabel, " are allowed"));
  }
  for (const char c : label) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '-') {
      return absl::InvalidArgumentError("may hold only lower-case letters, digits, '-' and '.'");
    }
  }
  if (label.front() == '-' || label.back() == '-') {
    return absl::InvalidArgumentError("has a label that does not start and end with a letter or a digit");
  }
  return absl::OkStatus();
}

}  // namespace

std::string NewJobId(absl::string_view job_name) {
  std::string id = absl::StrCat(job_name, "-");
  uint64_t bits = Random();
  for (int i = 0; i < 6; ++i) {
    id += kAlphabet[bits % kAlphabet.size()];
    bits /= kAlphabet.size();
  }
  return id;
}

std::string NewToken() {
  return absl::StrCat(absl::Hex(Random(), absl::kZeroPad16), absl::Hex(Random(), absl::kZeroPad16));
}

absl::Status CheckName(absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("is empty");
  if (name.size() > kMaxName) return TooLong(name.size(), kMaxName);
  for (const char c : name) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '-') {
      return absl::InvalidArgumentError("may hold only lower-case letters, digits and '-'");
    }
  }
  if (!absl::ascii_islower(name.front())) return absl::InvalidArgumentError("must start with a letter");
  if (name.back() == '-') return absl::InvalidArgumentError("must end with a letter or a digit");
  return absl::OkStatus();
}

absl::Status CheckNodeName(absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("is empty");
  if (name.size() > kMaxNodeName) return TooLong(name.size(), kMaxNodeName);
  if (name == "preflight") return absl::InvalidArgumentError("is reserved for preflights");
  for (const absl::string_view label : absl::StrSplit(name, '.')) {
    if (const absl::Status status = CheckLabel(label); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string NodeNameOf(absl::string_view host_name) { return absl::AsciiStrToLower(host_name); }

}  // namespace fsdpd
