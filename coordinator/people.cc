#include "coordinator/people.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "base/bearer_token.h"
#include "base/check.h"
#include "base/errno_status.h"
#include "base/log.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxTokens = 10'000;  // Each is compared with what a call brings.
constexpr int64_t kMaxFileBytes = 4 << 20;
// Dates of files come from a clock that ticks: one that was just written may be written again at the same
// date.
constexpr absl::Duration kSettled = absl::Seconds(2);

absl::Status WrongLine(int line, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", why));
}

// A text that is shown may be a token that stands in the wrong place.
absl::StatusOr<KnownToken> ParseLine(int number, absl::string_view line) {
  const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.size() != 3) {
    return WrongLine(number, absl::StrCat("has ", words.size(), " words; it is NAME ROLE HASH"));
  }
  KnownToken token;
  token.person.name = words[0];
  if (const absl::Status name = CheckPersonName(words[0]); !name.ok())
    return WrongLine(number, name.message());
  const std::optional<PersonRole> role = RoleNamed(words[1]);
  if (!role.has_value()) {
    return WrongLine(number, "the second word is no role; roles are viewer, submitter, operator and admin");
  }
  token.person.role = *role;
  if (!IsTokenHash(words[2])) {
    return WrongLine(
        number, "the third word is no hash: sha256: and 64 hex digits, as `fsdpctl token new` prints it");
  }
  token.hash = words[2];
  return token;
}

}  // namespace

absl::StatusOr<std::vector<KnownToken>> ParseTokens(absl::string_view text) {
  std::vector<KnownToken> tokens;
  std::map<std::string, int> lines;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    FSDPD_ASSIGN_OR_RETURN(KnownToken token, ParseLine(number, line));
    const auto [first, fresh] = lines.emplace(token.hash, number);
    if (!fresh) return WrongLine(number, absl::StrCat("the hash stands in line ", first->second, " already"));
    tokens.push_back(std::move(token));
    if (tokens.size() > kMaxTokens)
      return WrongLine(number, absl::StrCat("more than ", kMaxTokens, " tokens"));
  }
  return tokens;
}

bool People::Stamp::operator==(const Stamp& other) const {
  return device == other.device && inode == other.inode && bytes == other.bytes &&
         modified_ns == other.modified_ns && changed_ns == other.changed_ns;
}

absl::StatusOr<std::unique_ptr<People>> People::Open(const std::string& path, Clock* clock) {
  std::unique_ptr<People> file(new People(path, clock));
  FSDPD_RETURN_IF_ERROR(file->Reread());
  return file;
}

absl::StatusOr<People::Stamp> People::Look() const {
  struct stat stat = {};
  if (::stat(path_.c_str(), &stat) != 0) return ErrnoStatus(path_);
  if (!S_ISREG(stat.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path_, ": is no file"));
  if ((stat.st_mode & S_IWOTH) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ": every user of this machine may write it, and so who may do what; chmod o-w it"));
  }
  if (stat.st_size > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": has more than 4 MiB"));
  }
  const auto nanos = [](const timespec& time) { return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec; };
  return Stamp{static_cast<int64_t>(stat.st_dev), static_cast<int64_t>(stat.st_ino), stat.st_size,
               nanos(stat.st_mtim), nanos(stat.st_ctim)};
}

// The look comes first: what is written after it is another stamp, and read again.
absl::Status People::Reread() {
  FSDPD_ASSIGN_OR_RETURN(const Stamp stamp, Look());
  {
    MutexLock lock(&mutex_);
    if (stamp_ == stamp) return absl::OkStatus();
  }
  std::ifstream file(path_);
  std::stringstream text;
  text << file.rdbuf();
  if (!file.good()) return absl::UnavailableError(absl::StrCat(path_, ": cannot be read"));
  absl::StatusOr<std::vector<KnownToken>> tokens = ParseTokens(text.str());
  const bool settled = clock_->Wall() - absl::FromUnixNanos(stamp.changed_ns) > kSettled;
  MutexLock lock(&mutex_);
  stamp_ = settled ? std::make_optional(stamp) : std::nullopt;
  if (!tokens.ok()) return absl::InvalidArgumentError(absl::StrCat(path_, ": ", tokens.status().message()));
  last_fault_.clear();
  if (tokens->empty() && (tokens_ == nullptr || !tokens_->empty()))
    LogWarning("%s has no line of a token: nobody can call", path_);
  tokens_ = std::make_shared<const std::vector<KnownToken>>(*std::move(tokens));
  return absl::OkStatus();
}

std::optional<Person> People::Find(absl::string_view token) {
  const absl::Status read = Reread();
  Tokens tokens;
  {
    MutexLock lock(&mutex_);
    std::string fault(read.message());
    if (!read.ok() && std::exchange(last_fault_, fault) != fault) {
      LogError("tokens cannot be read, those before stay: %s", fault);
    }
    tokens = tokens_;
  }
  // All are compared, so that the time says nothing of which it was.
  const std::string hash = HashOfToken(token);
  std::optional<Person> found;
  for (const KnownToken& known : *tokens) {
    if (SameHash(known.hash, hash)) found = known.person;
  }
  return found;
}

}  // namespace fsdpd
