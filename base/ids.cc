#include "base/ids.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>

#include <random>

namespace fsdpd {
namespace {

// No vowels (no words), no 0/1/l (no confusion).
constexpr absl::string_view kAlphabet = "bcdfghjkmnpqrstvwxz23456789";
constexpr size_t kMaxName = 40;

uint64_t Random() {
  thread_local std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
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
  if (name.size() > kMaxName) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", name.size(), " characters; at most ", kMaxName, " are allowed"));
  }
  for (const char c : name) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '-') {
      return absl::InvalidArgumentError("may hold only lower-case letters, digits and '-'");
    }
  }
  if (!absl::ascii_islower(name.front())) return absl::InvalidArgumentError("must start with a letter");
  if (name.back() == '-') return absl::InvalidArgumentError("must end with a letter or a digit");
  return absl::OkStatus();
}

}  // namespace fsdpd
