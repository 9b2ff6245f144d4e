#include "coordinator/access/token_store.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <map>
#include <utility>

#include "base/api/bearer_token.h"
#include "base/check.h"
#include "base/log.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxTokens = 10'000;  // Each call compares its token with all of them.

absl::Status WrongLine(int line, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", why));
}

// Errors quote no text of the line, because a misplaced word may be a token.
absl::StatusOr<KnownToken> ParseLine(int number, absl::string_view line) {
  const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.size() != 3 && words.size() != 4) {
    return WrongLine(
        number, absl::StrCat("invalid line (got ", words.size(), " words, want NAME ROLE HASH [PROJECT])"));
  }
  KnownToken token;
  token.principal.name = words[0];
  if (const absl::Status name = CheckPrincipalName(words[0]); !name.ok())
    return WrongLine(number, name.message());
  const std::optional<PrincipalRole> role = RoleNamed(words[1]);
  if (!role.has_value()) {
    return WrongLine(number, "invalid role in the second word; use viewer, submitter, operator or admin");
  }
  token.principal.role = *role;
  if (!IsTokenHash(words[2])) {
    return WrongLine(number, "invalid hash in the third word; use the line that `fsdpctl token new` prints");
  }
  token.hash = words[2];
  if (words.size() < 4) return token;
  if (const absl::Status name = CheckProjectName(words[3]); !name.ok())
    return WrongLine(number, name.message());
  token.principal.project = words[3];
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
    if (!fresh) return WrongLine(number, absl::StrCat("duplicate of the hash in line ", first->second));
    tokens.push_back(std::move(token));
    if (tokens.size() > kMaxTokens)
      return WrongLine(number, absl::StrCat("more than ", kMaxTokens, " tokens"));
  }
  return tokens;
}

TokenStore::TokenStore(const std::string& path, Clock* clock)
    : file_("tokens", path, clock, [this, path](const std::string& text) { return Take(path, text); }) {}

absl::StatusOr<std::unique_ptr<TokenStore>> TokenStore::Open(const std::string& path, Clock* clock) {
  std::unique_ptr<TokenStore> file(new TokenStore(path, clock));
  FSDPD_RETURN_IF_ERROR(file->file_.Reread());
  return file;
}

absl::Status TokenStore::Take(const std::string& path, const std::string& text) {
  FSDPD_ASSIGN_OR_RETURN(std::vector<KnownToken> tokens, ParseTokens(text));
  MutexLock lock(&mutex_);
  // A file that is being written is empty at first.
  if (text.empty()) return absl::InvalidArgumentError("is empty; write a comment (#) if no token is valid");
  if (tokens.empty() && (tokens_ == nullptr || !tokens_->empty()))
    LogWarning("token file has no tokens; all calls will be rejected path=%s", path);
  tokens_ = std::make_shared<const std::vector<KnownToken>>(std::move(tokens));
  return absl::OkStatus();
}

std::optional<Principal> TokenStore::Find(absl::string_view token) {
  file_.Refresh();
  Tokens tokens;
  {
    MutexLock lock(&mutex_);
    tokens = tokens_;
  }
  // Compares all tokens, so that the time does not depend on the match.
  const std::string hash = HashOfToken(token);
  std::optional<Principal> found;
  for (const KnownToken& known : *tokens) {
    if (SameHash(known.hash, hash)) found = known.principal;
  }
  return found;
}

}  // namespace fsdpd
