#include "client/flags/suggest_command.h"

#include <algorithm>

#include "base/text.h"

namespace fsdpd {
namespace {

struct Synonym {
  const char* word;
  const char* verb;
};
// Names in kubectl, docker and Slurm.
constexpr Synonym kSynonyms[] = {
    {"del", "delete"},     {"rm", "delete"},     {"remove", "delete"}, {"new", "submit"},
    {"create", "submit"},  {"apply", "submit"},  {"stop", "cancel"},   {"kill", "cancel"},
    {"scancel", "cancel"}, {"sbatch", "submit"}, {"squeue", "get"},    {"jobs", "get"},
    {"ls", "get"},         {"list", "get"},      {"ps", "get"},
};

}  // namespace

std::string SuggestCommand(absl::string_view word, std::vector<std::string> candidates) {
  for (const Synonym& synonym : kSynonyms) {
    const bool known = std::count(candidates.begin(), candidates.end(), synonym.verb) > 0;
    if (word == synonym.word && known) return synonym.verb;
  }
  // Two edits turn a short word into almost any other one, so its first letter must match: "jobs" is not
  // "logs".
  constexpr size_t kShort = 4;
  if (word.size() <= kShort) {
    const auto begins_otherwise = [&](const std::string& each) { return each.front() != word.front(); };
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(), begins_otherwise),
                     candidates.end());
  }
  return Nearest(word, candidates);
}

}  // namespace fsdpd
