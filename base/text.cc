#include "base/text.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fsdpd {
namespace {

// Optimal string alignment distance: a transposition of neighbors counts as one edit.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), row(b.size() + 1);
  std::iota(previous.begin(), previous.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, substitution});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, row);
  }
  return previous[b.size()];
}

struct Unit {
  absl::string_view suffix;
  double bytes;
};
constexpr Unit kByteUnits[] = {
    {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0},
    {"KB", 1e3},     {"MB", 1e6},        {"GB", 1e9},           {"TB", 1e12},
    {"B", 1.0},
};

// Numbers in a name, each with one or two letters directly before it: h100 is not a misspelled a100, while
// gtp2 is a misspelled gpt2. "llama3.1-8b": 3, 1, 8. A letter O after a digit counts as zero: "h2O0" is h200.
std::vector<std::string> NumbersIn(absl::string_view word) {
  std::vector<std::string> numbers;
  const auto is_zero = [](char c) { return c == '0' || c == 'o' || c == 'O'; };
  size_t letters = 0;  // Number of letters directly before this character.
  for (size_t i = 0; i < word.size(); ++i) {
    if (!absl::ascii_isdigit(word[i])) {
      letters = absl::ascii_isalpha(word[i]) ? letters + 1 : 0;
      continue;
    }
    const size_t kept = letters <= 2 ? letters : 0;
    std::string number = absl::AsciiStrToLower(word.substr(i - kept, kept));
    for (; i < word.size() && (absl::ascii_isdigit(word[i]) || is_zero(word[i])); ++i)
      number.push_back(is_zero(word[i]) ? '0' : word[i]);
    --i;
    numbers.push_back(std::move(number));
    letters = 0;
  }
  return numbers;
}

}  // namespace

std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates) {
  const std::vector<std::string> numbers = NumbersIn(word);
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(word, candidate);
    if (distance < best_distance && distance < std::max(word.size(), candidate.size()) &&
        NumbersIn(candidate) == numbers) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string HumanBytes(int64_t bytes) {
  double value = static_cast<double>(bytes);
  if (std::abs(value) < 1024) return absl::StrCat(bytes, " B");
  static constexpr const char* kNames[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = -1;
  while (std::abs(value) >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.*f %s", std::abs(value) < 10 ? 2 : 1, value, kNames[unit]);
}

std::string HumanSeconds(double seconds) {
  constexpr double kMost = 3.6e12;  // Limits values from a faulty peer, including NaN.
  if (!(seconds >= 1)) return absl::StrFormat("%.0f ms", seconds * 1e3);
  if (seconds < 60) return absl::StrFormat("%.0f s", seconds);
  const auto whole = static_cast<int64_t>(std::min(seconds, kMost) + 0.5);
  if (whole < 3600) return absl::StrFormat("%d m %02d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %02d m", whole / 3600, whole % 3600 / 60);
}

std::string HumanCount(double count) {
  if (count >= 1e9) return absl::StrFormat("%.1f B", count / 1e9);
  if (count >= 1e6) return absl::StrFormat("%.1f M", count / 1e6);
  if (count >= 1e4) return absl::StrFormat("%.1f k", count / 1e3);
  return absl::StrFormat("%.0f", count);
}

std::string CutText(absl::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  return std::string(text.substr(0, bytes));
}

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  const auto bad = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is not a size; write bytes, or a number with KiB, MiB, GiB, KB, MB or GB"));
  };
  absl::string_view number = text;
  double unit_bytes = 1;
  for (const Unit& unit : kByteUnits) {
    if (number.size() > unit.suffix.size() &&
        number.substr(number.size() - unit.suffix.size()) == unit.suffix) {
      number.remove_suffix(unit.suffix.size());
      unit_bytes = unit.bytes;
      break;
    }
  }
  while (!number.empty() && number.back() == ' ') number.remove_suffix(1);
  double value = 0;
  if (number.empty() || !absl::SimpleAtod(number, &value)) return bad();
  const double bytes = value * unit_bytes;
  if (!(bytes >= 0) || bytes >= 9.2e18) return bad();
  return static_cast<int64_t>(std::llround(bytes));
}

}  // namespace fsdpd
