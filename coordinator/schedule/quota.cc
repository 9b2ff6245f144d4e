#include "coordinator/schedule/quota.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <utility>
#include <vector>

#include "base/api/principal.h"
#include "base/check.h"

namespace fsdpd {
namespace {

constexpr int64_t kMaxRanks = 1'000'000;

absl::Status WrongLine(int line, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", why));
}

}  // namespace

absl::StatusOr<RanksByProject> ParseQuotas(absl::string_view text) {
  RanksByProject quotas;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() != 2)
      return WrongLine(number,
                       absl::StrCat("invalid line (got ", words.size(), " words, want PROJECT RANKS)"));
    if (const absl::Status name = CheckProjectName(words[0]); !name.ok())
      return WrongLine(number, name.message());
    int64_t ranks = 0;
    if (!absl::SimpleAtoi(words[1], &ranks) || ranks < 0 || ranks > kMaxRanks) {
      return WrongLine(number,
                       absl::StrCat("invalid number of ranks (want a whole number up to ", kMaxRanks, ")"));
    }
    if (!quotas.emplace(words[0], ranks).second)
      return WrongLine(number, absl::StrCat("duplicate project ", words[0]));
  }
  return quotas;
}

QuotaFile::QuotaFile(const std::string& path, Clock* clock)
    : file_("quotas", path, clock, [this](const std::string& text) { return Take(text); }) {}

absl::StatusOr<std::unique_ptr<QuotaFile>> QuotaFile::Open(const std::string& path, Clock* clock) {
  std::unique_ptr<QuotaFile> file(new QuotaFile(path, clock));
  FSDPD_RETURN_IF_ERROR(file->file_.Reread());
  return file;
}

absl::Status QuotaFile::Take(const std::string& text) {
  FSDPD_ASSIGN_OR_RETURN(RanksByProject ranks, ParseQuotas(text));
  MutexLock lock(&mutex_);
  ranks_ = std::move(ranks);
  return absl::OkStatus();
}

RanksByProject QuotaFile::Read() {
  file_.Refresh();
  MutexLock lock(&mutex_);
  return ranks_;
}

bool RemainingQuotas::Allows(const std::string& project, int64_t ranks) const {
  const auto quota = quotas_.find(project);
  if (project.empty() || quota == quotas_.end()) return true;
  const auto held = held_.find(project);
  return (held == held_.end() ? 0 : held->second) + ranks <= quota->second;
}

std::string RemainingQuotas::WhyNot(const v1::Job& job, int64_t ranks, v1::Job::Waiting* waiting) {
  const std::string& project = job.project();
  const auto quota = quotas_.find(project);
  if (project.empty() || quota == quotas_.end()) return "";
  const int64_t most = quota->second, held = held_[project];
  const auto first = first_.find(project);
  if (first == first_.end() && held + ranks <= most) return "";
  waiting->set_code(v1::Job::Waiting::CODE_QUOTA);
  const std::string needs = absl::StrCat("needs ", ranks, ranks == 1 ? " rank" : " ranks", " and project ",
                                         project, " may have ", most, " at a time");
  if (ranks > most) {
    waiting->set_remedy(
        absl::StrCat("a larger quota of project ", project, most > 0 ? ", or fewer ranks" : ""));
    return absl::StrCat(needs, ": it cannot start under this quota");
  }
  if (first != first_.end()) {
    waiting->add_jobs(first->second);
    waiting->set_remedy(absl::StrCat("the launch of ", first->second, ", or its pause or cancellation"));
    return absl::StrCat(needs, "; waits behind job ", first->second, " of the same project");
  }
  first_[project] = job.id();
  waiting->set_remedy(absl::StrCat("jobs of project ", project, " to end or be paused, or a larger quota"));
  return absl::StrCat(needs, "; ", held, held == 1 ? " is" : " are", " in use");
}

}  // namespace fsdpd
